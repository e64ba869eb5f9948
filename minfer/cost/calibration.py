"""Calibration: this machine's rates by probes, each timed alone; no engine's step is among them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from minfer.bench.contestants import engine_class
from minfer.bench.variants import VARIANTS, Variant
from minfer.bench.workloads import decode
from minfer.core.device import Device
from minfer.core.measures.bandwidth import copy_bandwidth
from minfer.core.params import SamplingParams
from minfer.cost import layer_probes, probes
from minfer.cost.cost_model import COMPILED, FUSED
from minfer.cost.hardware import THIS_MACHINE, Hardware, Line
from minfer.cost.simulation import Nothing

FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
DTYPES = (FULL, HALF, BRAIN)
MESSAGES = (2**12, 2**16, 2**20)
Say = Callable[[str], None]


def calibrate(module: nn.Module, device: Device, title: str, ranks: int, say: Say) -> Hardware:
    """The rates of `device`, in the shapes of `module`, whose weights are float32; `say` hears what is measured next.

    `ranks`: how many to measure the link between; 1: none.
    """
    config: Any = module.config
    say("memory and operators")
    bandwidth = max(probes.reading(device), copy_bandwidth(device))
    made = Hardware(
        name=THIS_MACHINE,
        title=title,
        bandwidth=bandwidth,
        peak_bandwidth=bandwidth,
        flops={name_of(dtype): probes.multiplying(dtype, device) for dtype in DTYPES},
        operation=probes.operation(device),
        moved=probes.moving(device),
        sources={"all": "minfer calibrate; peak_bandwidth is the one that was measured"},
    )
    say("attention and gathering")
    made = replace(
        made,
        gather={name_of(dtype): probes.fitted(partial(probes.gathering, config, dtype, device)) for dtype in DTYPES},
        decode={name_of(dtype): probes.fitted(partial(probes.decoding, config, dtype, device)) for dtype in DTYPES},
        prefill={name_of(dtype): probes.fitted(partial(probes.prompting, config, dtype, device)) for dtype in DTYPES},
    )
    say("the host's part of a step")
    between = probes.fitted(partial(host, config, device))
    made = replace(made, step=between.call, request=between.per)
    say("a layer beside its products")
    made = layers(config, made, device)
    if ranks > 1:
        say(f"the link between {ranks} ranks")
        made = replace(made, link=link(ranks, device))
    for variant in measured_variants():
        say(f"products of {variant.setup(config).kernels}")
        made.products[variant.setup(config).kernels] = products(variant, module, made, device)
    return made


def measured_variants() -> list[Variant]:
    """One variant for each kind of products that rows have."""
    names: dict[tuple[str, bool], Variant] = {}
    for variant in VARIANTS:
        if not variant.cuda and variant.ranks == 1:
            names.setdefault((variant.weights, variant.phase >= 7), variant)
    return list(names.values())


@torch.inference_mode()
def products(variant: Variant, module: nn.Module, made: Hardware, device: Device) -> dict[str, probes.Curve]:
    """Curves of its layers and of its head, from the very modules that its engine multiplies with."""
    base = engine_class(max(variant.phase, 6))
    options = {"num_blocks": 2, "max_batch": 1, **dict(variant.options)}
    if variant.phase >= FUSED:
        options["compiler"] = "none"
    engine = base(copy.deepcopy(module).to(variant.dtype), None, base.Options(**options))
    if variant.phase >= FUSED:  # what is compiled leaves no gap between them
        return probes.curves(probes.products(engine.model, variant.dtype, device))
    beside = made.layer["eager" if variant.dtype.itemsize >= 4 else "eager in 16 bits"]
    return probes.curves(layer_probes.products_in_place(engine.model, variant.dtype, beside, device))


def layers(config: Any, made: Hardware, device: Device) -> Hardware:
    """With what a layer's operators take beside products and attention: each alone, and compiled; and with what a
    decode step's attention takes where it is compiled with them."""
    lines = {}
    for name, dtype in (("eager", FULL), ("eager in 16 bits", BRAIN)):
        model = layer_probes.short(config).to(device.torch_device, dtype)
        lines[name] = probes.fitted(partial(layer_probes.beside_products, layer_probes.without_products(model), device))
    base = engine_class(7)
    options = base.Options(num_blocks=8, max_batch=1, compiler="inductor")
    engine = base(layer_probes.short(config).to(device.torch_device), None, options)
    model = layer_probes.without_products(engine.model)
    lines["fused"] = probes.fitted(partial(layer_probes.beside_products, model, device))
    if model.decoding is None:  # on a card, or without a compiler
        return replace(made, layer=lines)
    compiled = probes.fitted(partial(layer_probes.compiled_decoding, model, lines["fused"], device))
    return replace(made, layer=lines, decode={**made.decode, COMPILED: compiled})


def host(config: Any, device: Device) -> probes.Points:
    """Seconds of a step outside of the forward, and for each request in it: the engine over a model without work."""
    return [(float(batch), _idle_step(config, device, batch)) for batch in (1, 4, 16)]


def _idle_step(config: Any, device: Device, batch: int) -> float:
    """Seconds of a decode step of `batch` requests on a model that computes nothing."""
    base = engine_class(5)
    nothing = Nothing(config).to(device.torch_device)
    return decode_step(base(nothing, None, base.Options(num_blocks=8 * batch, max_batch=batch)), batch, device)


def decode_step(engine: Any, batch: int, device: Device) -> float:
    """Seconds of a step that decodes one token of each of `batch` requests."""
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    running = [engine.submit(one.prompt_ids, params) for one in decode(engine.config.vocab_size, batch, 16).requests]
    for _ in range(4):
        engine.step()
    took = probes.seconds(engine.step, device, most=40)
    while not all(sequence.finished for sequence in running):
        engine.step()
    return took


def link(ranks: int, device: Device) -> Line:
    """Latency and seconds per byte of an all-reduce between ranks on this machine, by the bytes a ring would move."""
    from minfer.bench.collectives import measure

    found = measure(ranks, list(MESSAGES), str(device.torch_device))
    ring = 2 * (ranks - 1) / ranks
    return probes.line([(ring * one.nbytes, one.seconds) for one in found if one.operation == "AllReduce"])


def name_of(dtype: torch.dtype) -> str:
    """float32 and the like."""
    return str(dtype).removeprefix("torch.")
