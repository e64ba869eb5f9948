"""Parts of a step: what the milliseconds of one forward of a workload go to, so that a ratio can be explained.

Of a decode workload it is a step of all its requests, of a prefill that of the prompt. A short run under torch.profiler
gives them; its own time, so much for each event that it notes, is taken off. Whatever the counted runs took beyond them
is a part of its own, so that all sum to the step. A kernel of the compiler that does several parts is attention's,
where that is among them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from torch import Tensor, nn
from torch.profiler import record_function

from minfer.bench.anatomy import layers_marked
from minfer.bench.contestants import EngineContestant
from minfer.bench.operators import Operators
from minfer.bench.runner import brief
from minfer.bench.sample import Sample
from minfer.bench.shares import FORWARD
from minfer.bench.workloads import Workload
from minfer.core.batch import ForwardBatch

HEAD = "minfer::head"
TOKENS = 9  # of each request: eight decode steps


def parts_of_a_step(
    contestant: EngineContestant, workload: Workload, samples: list[Sample], event_s: float
) -> dict[str, float]:
    """Seconds of a step, by part; `event_s` is the time that the profiler takes to note one event.

    `host_s` is the time outside of forwards in the counted runs, per step; `step_s` is a step of those runs, and
    `rest_s` what no part of it explains (negative: the profiled steps took longer).
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
    return {**parts, "step_s": step, "rest_s": step - sum(parts.values())}


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
