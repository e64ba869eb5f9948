"""Parts of a step: what the milliseconds of one forward of a workload go to, so that a ratio can be explained.

Of a decode workload it is a step of all its requests, of a prefill that of the prompt. A short run under torch.profiler
gives them; its own time, so much for each event that it notes, is taken off. Whatever the counted runs took beyond them
is a part of its own, so that all sum to the step. A kernel of the compiler that does several parts is attention's,
where that is among them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from minfer.bench.anatomy import layers_marked
from minfer.bench.contestants import EngineContestant
from minfer.bench.linear_layers import LINEAR, weight_of
from minfer.bench.operators import Operators
from minfer.bench.probes import multiplying, reading
from minfer.bench.runner import brief
from minfer.bench.sample import Sample
from minfer.bench.shares import FORWARD
from minfer.bench.workloads import Workload
from minfer.core.batch import ForwardBatch
from minfer.core.device import Device
from minfer.phase6 import QuantizedLinear

HEAD = "minfer::head"
TOKENS = 9  # of each request: eight decode steps


@dataclass(frozen=True)
class Rates:
    """What this machine can do: bytes per second of large reads, FLOPs per second of a large product in float32."""

    reads: float
    flops: float

    @classmethod
    def of(cls, device: Device) -> "Rates":
        """Measured now."""
        return cls(reading(device), multiplying(torch.float32, device))

    def floor(self, model: Any, tokens: int, rows: int) -> float:
        """Seconds that products cannot fall below: each weight read once, or every multiplication done.

        `tokens` go through the layers, `rows` of them through the head. Products in 8 bits may multiply faster.
        """
        nbytes = flops = 0
        for layer in (one for one in model.modules() if isinstance(one, LINEAR)):
            weights, read = size_of(layer)
            nbytes += read
            flops += 2 * weights * (rows if layer is model.lm_head else tokens)
        return max(nbytes / self.reads, flops / self.flops)


def size_of(layer: Any) -> tuple[int, int]:
    """Weights of a linear layer, and the bytes that reading them takes, without what a kernel pads them with."""
    if isinstance(layer, QuantizedLinear):
        size = (layer.out_features, layer.in_features)
        return size[0] * size[1], layer.scheme.nbytes(*size)
    weight = weight_of(layer)
    return weight.numel(), weight.nbytes


def parts_of_a_step(
    contestant: EngineContestant, workload: Workload, samples: list[Sample], event_s: float, rates: Rates
) -> dict[str, float]:
    """Seconds of a step, by part; `event_s` is the time that the profiler takes to note one event.

    `host_s` is the time outside of forwards in the counted runs, per step; `step_s` is a step of those runs, and
    `rest_s` what no part of it explains (negative: the profiled steps took longer); `floor_s` what products and head
    take at least at the machine's `rates`.
    """
    engine: Any = contestant.engine
    forward, steps = engine.forward, 0
    tokens = len(workload.requests) if workload.figure == "decode" else workload.input_tokens

    def marked(batch: ForwardBatch) -> Tensor:
        nonlocal steps
        if batch.input_ids.numel() != tokens:
            return forward(batch)
        steps += 1
        with record_function(FORWARD):
            return forward(batch)

    engine.forward = marked
    try:
        with layers_marked(engine), head_marked(engine.model.lm_head):
            seen = Operators.of(lambda: contestant.run(brief(workload, TOKENS)), FORWARD)
    finally:
        del engine.forward
    each = {kind: max(0.0, seen.seconds[kind] - event_s * seen.events[kind]) / steps for kind in seen.seconds}
    whole = (seen.within - event_s * seen.events.total()) / steps
    parts = {
        "products_s": each.get("products", 0.0),
        "attention_s": each.get("attention", 0.0) + each.get("cache", 0.0),
        "head_s": each.get("head", 0.0),
    }
    outside = median((run.duration - run.facts["forward_s"]) / run.facts["steps"] for run in samples)
    parts |= {"between_s": max(0.0, whole - sum(parts.values())), "host_s": outside}
    step = median(step_seconds(workload, run) for run in samples)
    floor = rates.floor(engine.model, tokens, len(workload.requests))
    return {**parts, "step_s": step, "rest_s": step - sum(parts.values()), "floor_s": floor}


def step_seconds(workload: Workload, run: Sample) -> float:
    """Seconds of one step: in a decode workload the mean once all prompts are computed; in a prefill the prompt's."""
    return len(workload.requests) / run.decode_throughput if workload.figure == "decode" else run.prefilled_s


@contextmanager
def head_marked(head: nn.Module) -> Iterator[None]:
    """Make all that the head does a part of its own."""
    ranges: list[Any] = []

    def enter(*_: Any) -> None:
        ranges.append(record_function(HEAD))
        ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    hooks = head.register_forward_pre_hook(enter, prepend=True), head.register_forward_hook(leave)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
