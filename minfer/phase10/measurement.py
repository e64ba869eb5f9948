"""Measurement: how long ranks take to say something, and what share of a decode step that is.

bytes                S: what a rank has after AllGather, before ReduceScatter, and on both sides of the others
latency              seconds from the first call to the last, over the number of calls
algorithm bandwidth  S / latency
bus bandwidth        algorithm bandwidth · factor: what a link must carry, whatever the number n of ranks:
                     2(n-1)/n for AllReduce, (n-1)/n for AllGather and ReduceScatter, 1 for Broadcast and Reduce
                     (as NVIDIA's nccl-tests define it: doc/PERFORMANCE.md there)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minfer.core.device import Device
from minfer.core.params import SamplingParams
from minfer.phase10.engine import Engine, ParallelOptions
from minfer.phase10.launcher import launcher_of
from minfer.phase10.ranks import Ranks
from minfer.phase10.torch_group import TorchGroup

WARMUPS = 3
SECONDS = 0.2
"""About how long each size is repeated."""
MOST_CALLS, LEAST_CALLS = 200, 5

MATRIX = 256
"""Rows and columns of the matrices that are multiplied beside communication."""

Operation = Callable[[Any, Tensor, Tensor], Any]

IN_A_STEP = "AllReduce in a step"
"""As engines do it: `Group.all_reduce`; the others are the library's own."""

OPERATIONS: dict[str, Operation] = {
    IN_A_STEP: lambda group, whole, part: group.all_reduce(whole),
    "AllReduce": lambda group, whole, part: group.made.allreduce([whole]).wait(),
    "Broadcast": lambda group, whole, part: group.made.broadcast([whole], dist.BroadcastOptions()).wait(),
    "Reduce": lambda group, whole, part: group.made.reduce([whole], dist.ReduceOptions()).wait(),
    "AllGather": lambda group, whole, part: group.made._allgather_base(whole, part).wait(),
    "ReduceScatter": lambda group, whole, part: group.made._reduce_scatter_base(part, whole).wait(),
}


def bus_factor(operation: str, ranks: int) -> float:
    """What the algorithm bandwidth is multiplied with; see the module's docstring."""
    if operation in ("Broadcast", "Reduce"):
        return 1.0
    return (2 if operation.startswith("AllReduce") else 1) * (ranks - 1) / ranks


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
class Overlap:
    """An AllReduce and products of matrices that take about as long: each alone, and both at once."""

    nbytes: int
    communication_seconds: float
    compute_seconds: float
    both_seconds: float

    @property
    def hidden(self) -> float:
        """The share of the shorter that the longer hides: 0 if they take turns, 1 if they run beside each other."""
        spared = self.communication_seconds + self.compute_seconds - self.both_seconds
        return max(0.0, spared) / min(self.communication_seconds, self.compute_seconds)


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
        self.overlap()

    @torch.inference_mode()
    def figures(self) -> list[Figure]:
        """The same calls on all ranks, in the same order; rank 0's times."""
        return [self.figure(operation, size) for operation in OPERATIONS for size in self.sizes]

    def figure(self, operation: str, size: int) -> Figure:
        """One operation with `size` bytes of float32."""
        group: Any = self.ranks.world
        part = torch.ones(max(1, size // 4 // group.size), device=self.ranks.device.torch_device)
        whole = part.repeat(group.size)
        seconds = self.seconds(lambda: OPERATIONS[operation](group, whole, part))
        return Figure(operation, whole.nbytes, seconds, group.size)

    @torch.inference_mode()
    def overlap(self) -> Overlap:
        """Of the largest message."""
        made: Any = self.ranks.world.made  # type: ignore[attr-defined]
        device = self.ranks.device.torch_device
        whole, matrix = torch.ones(max(self.sizes) // 4, device=device), torch.ones(MATRIX, MATRIX, device=device)
        communication = self.seconds(lambda: made.allreduce([whole]).wait())
        products = self.agreed(communication / self.seconds(lambda: matrix @ matrix))

        def compute() -> None:
            for _ in range(products):
                matrix @ matrix

        def both() -> None:
            started = made.allreduce([whole])
            compute()
            started.wait()

        return Overlap(whole.nbytes, communication, self.seconds(compute), self.seconds(both))

    def seconds(self, run: Callable[[], object]) -> float:
        """Of one call of `run`, by as many as take some time; all ranks do as many."""
        calls = self.agreed(SECONDS / self.timed(run, WARMUPS))
        return self.timed(run, min(max(calls, LEAST_CALLS), MOST_CALLS))

    def timed(self, run: Callable[[], object], calls: int) -> float:
        """Seconds a call, of so many, from when all ranks are there until all are done."""
        device, all_are_here = self.ranks.device, torch.zeros(1, device=self.ranks.device.torch_device)
        self.ranks.world.all_reduce(all_are_here)
        start = device.clock()
        for _ in range(calls):
            run()
        self.ranks.world.all_reduce(all_are_here)
        device.synchronize()
        return (device.clock() - start) / calls

    def agreed(self, number: float) -> int:
        """Rank 0's number, at least 1, on all ranks."""
        return int(self.ranks.host.broadcast(torch.tensor([max(1, round(number))])))


def measure(ranks: int, sizes: list[int], device: str = "auto") -> list[Figure]:
    """Figures of every operation at every size in bytes, among `ranks` ranks that are started for it."""
    return measure_all(ranks, sizes, device)[0]


def measure_all(ranks: int, sizes: list[int], device: str = "auto") -> tuple[list[Figure], Overlap]:
    """As `measure`; and what compute hides of the largest size."""
    options = {"device": device, "sizes": sizes}
    checked = ParallelOptions(device=device, tensor_parallel=ranks)
    view = launcher_of("processes").launch(Measurement, "", options, checked)
    with view.step():
        measurement = Measurement(view, sizes)
        figures, overlap = measurement.figures(), measurement.overlap()
    view.close()
    return figures, overlap


ROUNDS, STEPS = 6, 8
"""How often the two engines of a comparison take turns, and how many steps a turn has."""


def step_share(model: str, ranks: int, device: str = "auto", requests: int = 1) -> StepShare | None:
    """What a decode step of `model`, dealt to `ranks` ranks, spends on communication; and what one rank takes.

    None where the host cannot see it: on GPUs, operations run beside it. Raises `MinferError` or `RankError`.
    """
    if Device.get(device).torch_device.type != "cpu":
        return None
    options = {"device": device, "max_batch": requests}
    alone = Decoding(Engine.load(model, **options), requests)  # before the ranks take this process's threads
    dealt = Decoding(Engine.load(model, tensor_parallel=ranks, **options), requests)
    try:
        share = compared(alone, dealt)
    finally:
        dealt.engine.close()
    nbytes = requests * dealt.engine.config.hidden_size * dealt.engine.dtype.itemsize
    latency = next(one.seconds for one in measure(ranks, [nbytes], device) if one.operation == IN_A_STEP)
    return replace(share, latency=latency, requests=requests)


def compared(alone: "Decoding", dealt: "Decoding") -> StepShare:
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


class Decoding:
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
