"""Calibration: this machine's rates: of memory and operators by probes, of engines fitted to their real steps."""

import copy
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from minfer.bench import probes
from minfer.bench.contestants import EngineContestant
from minfer.bench.variants import BLOCK, VARIANTS, RanksContestant, Variant
from minfer.calibration import real_steps
from minfer.calibration.fitting import Fit, fitted
from minfer.calibration.real_steps import RealStep, RealSteps
from minfer.core.device import Device
from minfer.core.measures.bandwidth import copy_bandwidth
from minfer.cost.hardware import THIS_MACHINE, Hardware, Line

FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
DTYPES = (FULL, HALF, BRAIN)
MESSAGES = (2**12, 2**16, 2**20)
PASSES = 3
Say = Callable[[str], None]


def calibrate(
    module: nn.Module, model: str, device: Device, title: str, ranks: int, say: Say, after: Say | None = None
) -> Hardware:
    """The rates of `device`, in the shapes of `module`, whose weights are float32; `say` hears what is measured next.

    `model`: its name, by which other ranks load it; `ranks`: how many share it, 1: none do. `after` is called in each
    pass, after the steps of an engine, with the name of its kernels.
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
    if ranks > 1:
        say(f"the link between {ranks} ranks")
        made = replace(made, link=link(ranks, device))
    found: dict[Variant, list[list[RealStep]]] = {variant: [] for variant in measured_variants(ranks)}
    for number in range(PASSES):  # each over all engines: what disturbs the machine in one is over in the next
        for variant, passes in found.items():
            kernels = variant.setup(config).kernels
            say(f"steps of {kernels}, pass {number + 1} of {PASSES}")
            passes.append(steps(variant, module, model, device))
            if after is not None:
                after(kernels)
    engines = {}
    for variant, passes in found.items():
        setup = variant.setup(config)
        engines[setup.kernels] = Fit(setup, made, passes).rates()
    return replace(made, engines=engines)


def measured_variants(ranks: int) -> list[Variant]:
    """The first variant of each kind of engine that rows have; that of several ranks with as many as are asked for."""
    kinds: dict[tuple[str, bool, bool], Variant] = {}
    for variant in VARIANTS:
        if not variant.cuda and (variant.ranks == 1 or ranks > 1):
            kinds.setdefault((variant.weights, variant.phase >= 7, variant.ranks > 1), variant)
    return [
        one if one.ranks == 1 else replace(one, ranks=ranks, options=(("tensor_parallel", ranks),))
        for one in sorted(kinds.values(), key=lambda one: -one.ranks)  # what cannot be dealt out is refused at once
    ]


def steps(variant: Variant, module: nn.Module, model: str, device: Device) -> list[RealStep]:
    """Of an engine that is made for them and then let go: there is never more than one beside `module`."""
    with contestant(variant, module, model, device) as made:
        return RealSteps(made).all()


@contextmanager
def contestant(variant: Variant, module: nn.Module, model: str, device: Device) -> Iterator[EngineContestant]:
    """Its engine, with room for the real steps; gone in the end."""
    options = {**real_steps.OPTIONS, "num_blocks": real_steps.blocks(BLOCK), "block_size": BLOCK}
    if variant.ranks > 1:
        with closing(RanksContestant(variant, model, device, **options)) as made:
            yield made
        return
    own = copy.deepcopy(module).to(variant.dtype)
    yield EngineContestant(variant.phase, own, variant.name, **options, **dict(variant.options))


def link(ranks: int, device: Device) -> Line:
    """Latency and seconds per byte of an all-reduce between ranks on this machine, by the bytes a ring would move."""
    from minfer.bench.collectives import measure

    found = measure(ranks, list(MESSAGES), str(device.torch_device))
    ring = 2 * (ranks - 1) / ranks
    sums: dict[tuple[float, ...], float] = {
        (1.0, ring * one.nbytes): one.seconds for one in found if one.operation == "AllReduce"
    }
    return Line(*fitted(sums))


def name_of(dtype: torch.dtype) -> str:
    """float32 and the like."""
    return str(dtype).removeprefix("torch.")
