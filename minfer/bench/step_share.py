"""StepShare: what a decode step of a model that is dealt to ranks spends on communication, beside one rank alone."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from minfer.bench.collectives import IN_A_STEP, measure
from minfer.core.device import Device
from minfer.core.params import SamplingParams
from minfer.phase10 import Engine
from minfer.phase10.torch_group import TorchGroup

ROUNDS, STEPS = 6, 8
"""How often the two engines of a comparison take turns, and how many steps a turn has."""


@dataclass(frozen=True)
class StepShare:
    """A decode step of some requests, dealt to ranks, and on one rank that has the threads of all.

        step = compute + calls · latency + waiting

    Communication is what rank 0 spends in operations, waiting for other ranks included; `latency` is what one takes
    when no rank is late, measured apart: the sum after a product, as most are.
    """

    step_seconds: float
    communication_seconds: float
    calls: int
    alone_seconds: float
    latency: float
    requests: int = 1

    @property
    def operation_seconds(self) -> float:
        """What the operations would take if nobody waited."""
        return min(self.communication_seconds, self.calls * self.latency)

    @property
    def waiting_seconds(self) -> float:
        """For ranks that had more to compute, or were held up."""
        return self.communication_seconds - self.operation_seconds

    @property
    def share(self) -> float:
        """Of the step."""
        return self.communication_seconds / self.step_seconds

    @property
    def speed(self) -> float:
        """How many times as fast as the one rank; below 1: slower."""
        return self.alone_seconds / self.step_seconds


def step_share(model: str, ranks: int, device: str = "auto", requests: int = 1) -> StepShare | None:
    """What a decode step of `model`, dealt to `ranks` ranks, spends on communication; and what one rank takes.

    None where the host cannot see it: on GPUs, operations run beside it. Raises `MinferError` or `RankError`.
    """
    if Device.get(device).torch_device.type != "cpu":
        return None
    options = {"device": device, "max_batch": requests}
    alone = TimedEngine(Engine.load(model, **options), requests)  # before the ranks take this process's threads
    dealt = TimedEngine(Engine.load(model, tensor_parallel=ranks, **options), requests)
    try:
        share = compared(alone, dealt)
    finally:
        dealt.engine.close()
    nbytes = requests * dealt.engine.config.hidden_size * dealt.engine.dtype.itemsize
    latency = next(one.seconds for one in measure(ranks, [nbytes], device) if one.operation == IN_A_STEP)
    return replace(share, latency=latency, requests=requests)


def compared(alone: "TimedEngine", dealt: "TimedEngine") -> StepShare:
    """Both in turns, so that whatever else the machine does hits both; `latency` is still unknown."""
    ranks = dealt.engine.ranks
    groups: list[TorchGroup] = [ranks.world, ranks.tensor, ranks.host]
    before, calls = sum(group.seconds for group in groups), sum(group.calls for group in groups)
    for _ in range(ROUNDS):
        alone.turn()
        dealt.turn()
    spent = sum(group.seconds for group in groups) - before
    said = sum(group.calls for group in groups) - calls
    steps = ROUNDS * STEPS
    return StepShare(dealt.seconds / steps, spent / steps, said // steps, alone.seconds / steps, latency=0.0)


class TimedEngine:
    """An engine that decodes some requests, with as many threads as it was loaded with."""

    def __init__(self, engine: Any, requests: int) -> None:
        self.engine, self.threads, self.seconds = engine, torch.get_num_threads(), 0.0
        tokens = ROUNDS * STEPS + 4
        for _ in range(requests):
            engine.submit([1, 2, 3, 4], SamplingParams(max_tokens=tokens, ignore_eos=True))
        engine.step()
        engine.step()  # the first that only decodes may be slower

    def turn(self) -> None:
        """Some steps, each of which launches one, and lands the one before."""
        torch.set_num_threads(self.threads)
        start = self.engine.device.clock()
        for _ in range(STEPS):
            self.engine.step()
        self.seconds += self.engine.device.clock() - start
