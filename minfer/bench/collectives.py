"""Collectives: how long the operations between ranks take, by size, and what compute hides of them.

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

from minfer.phase10.engine import ParallelOptions
from minfer.phase10.launcher import launcher_of
from minfer.phase10.ranks import Ranks

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
        group: Any = self.ranks.world
        made, device = group.made, self.ranks.device.torch_device
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
        """The mean seconds of `calls` calls, from when all ranks are there until all are done."""
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
