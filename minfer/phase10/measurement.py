"""Measurement: how long ranks take to say something, and what share of a decode step that is.

bytes                S: what a rank has after AllGather, before ReduceScatter, and on both sides of the others
latency              seconds from the first call to the last, over the number of calls
algorithm bandwidth  S / latency
bus bandwidth        algorithm bandwidth · factor: what a link must carry, whatever the number n of ranks:
                     2(n-1)/n for AllReduce, (n-1)/n for AllGather and ReduceScatter, 1 for Broadcast and Reduce
                     (as NVIDIA's nccl-tests define it: doc/PERFORMANCE.md there)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minfer.core.params import SamplingParams
from minfer.phase10.engine import Engine, ParallelOptions
from minfer.phase10.launcher import launcher_of
from minfer.phase10.ranks import Ranks
from minfer.phase10.torch_group import TorchGroup

WARMUPS = 3
SECONDS = 0.2
"""About how long each size is repeated."""
MOST_CALLS, LEAST_CALLS = 200, 5

Operation = Callable[[Any, Tensor, Tensor], Any]

OPERATIONS: dict[str, Operation] = {
    "AllReduce": lambda made, whole, part: made.allreduce([whole]),
    "Broadcast": lambda made, whole, part: made.broadcast([whole], dist.BroadcastOptions()),
    "Reduce": lambda made, whole, part: made.reduce([whole], dist.ReduceOptions()),
    "AllGather": lambda made, whole, part: made._allgather_base(whole, part),
    "ReduceScatter": lambda made, whole, part: made._reduce_scatter_base(part, whole),
}


def bus_factor(operation: str, ranks: int) -> float:
    """What the algorithm bandwidth is multiplied with; see the module's docstring."""
    if operation in ("Broadcast", "Reduce"):
        return 1.0
    return (2 if operation == "AllReduce" else 1) * (ranks - 1) / ranks


@dataclass(frozen=True)
class Figure:
    """One operation at one size. Bandwidths are in bytes per second."""

    operation: str
    nbytes: int
    seconds: float
    ranks: int

    @property
    def algorithm_bandwidth(self) -> float:
        """S / latency."""
        return self.nbytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Times the factor."""
        return self.algorithm_bandwidth * bus_factor(self.operation, self.ranks)


@dataclass(frozen=True)
class StepShare:
    """A decode step of one request. Communication is what rank 0 spends in it, waiting for the other ranks included."""

    step_seconds: float
    communication_seconds: float
    calls: int

    @property
    def share(self) -> float:
        """Of the step."""
        return self.communication_seconds / self.step_seconds


class Measurement:
    """All operations at all sizes, on all ranks: a rank's process runs it in place of an engine."""

    def __init__(self, ranks: Ranks, sizes: list[int]) -> None:
        self.ranks, self.sizes = ranks, sizes

    @classmethod
    def load(cls, model: str, *, ranks: Ranks, sizes: list[int], **_: Any) -> "Measurement":
        """As `Engine.load`, without a model."""
        return cls(ranks, sizes)

    def serve(self) -> None:
        """Take part."""
        self.figures()

    @torch.inference_mode()
    def figures(self) -> list[Figure]:
        """The same calls on all ranks, in the same order; rank 0's times."""
        return [self.figure(operation, size) for operation in OPERATIONS for size in self.sizes]

    def figure(self, operation: str, size: int) -> Figure:
        """One operation with `size` bytes of float32."""
        group: Any = self.ranks.world
        device, run = self.ranks.device, OPERATIONS[operation]
        part = torch.ones(max(1, size // 4 // group.size), device=device.torch_device)
        whole = part.repeat(group.size)

        def seconds(calls: int) -> float:
            self.ranks.world.all_reduce(torch.zeros(1, device=device.torch_device))
            start = device.clock()
            for _ in range(calls):
                run(group.made, whole, part).wait()
            self.ranks.world.all_reduce(torch.zeros(1, device=device.torch_device))  # until all are done
            device.synchronize()
            return (device.clock() - start) / calls

        guess = torch.tensor([int(SECONDS / seconds(WARMUPS))])
        calls = int(self.ranks.host.broadcast(guess).clamp(LEAST_CALLS, MOST_CALLS))
        return Figure(operation, whole.nbytes, seconds(calls), group.size)


def measure(ranks: int, sizes: list[int], device: str = "auto") -> list[Figure]:
    """Figures of every operation at every size in bytes, among `ranks` ranks that are started for it."""
    options = {"device": device, "sizes": sizes}
    checked = ParallelOptions(device=device, tensor_parallel=ranks)
    view = launcher_of("processes").launch(Measurement, "", options, checked)
    with view.step():
        figures = Measurement(view, sizes).figures()
    view.close()
    return figures


def step_share(model: str, ranks: int, steps: int = 30, device: str = "auto") -> StepShare | None:
    """What a decode step of `model`, dealt to `ranks` ranks, spends on communication.

    None where the host cannot see it: on GPUs, operations run beside it. Raises `MinferError` or `RankError`.
    """
    engine: Any = Engine.load(model, device=device, tensor_parallel=ranks)
    try:
        if engine.device.torch_device.type != "cpu":
            return None
        sequence = engine.submit([1, 2, 3, 4], SamplingParams(max_tokens=steps + 2, ignore_eos=True))
        engine.step()
        engine.step()  # the first that only decodes may be slower
        groups: list[TorchGroup] = [engine.ranks.world, engine.ranks.tensor, engine.ranks.host]
        before, start = [(group.seconds, group.calls) for group in groups], engine.device.clock()
        while not sequence.finished:
            engine.step()
        took = engine.device.clock() - start
        spent = sum(group.seconds - seconds for group, (seconds, _) in zip(groups, before, strict=True))
        calls = sum(group.calls - count for group, (_, count) in zip(groups, before, strict=True))
        return StepShare(took / steps, spent / steps, calls // steps)
    finally:
        engine.close()
