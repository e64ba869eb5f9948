"""Profile: one run looked at by torch.profiler: its kernels, how long the device had nothing to do, its trace."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minfer.core.measures.trace import MEMORY, Trace, check_path, peak_bytes
from minfer.core.sequence import Completion, Sequence
from minfer.phase11.memory import MemoryParts
from minfer.phase11.tracks import tracks


@dataclass(frozen=True)
class Kernel:
    """All calls of one operator (on a CPU) or of one kernel (on a card)."""

    name: str
    calls: int
    seconds: float
    """Without those that it called in its turn."""


@dataclass
class Profile:
    """What came of a run under the profiler. A profiled run is slower: believe its shares, not its speed.

    wall_s    from before the first step until the device had done everything
    busy_s    of that, with a kernel at work: on a card by its own time, on a CPU that of operators in any thread
    """

    completions: list[Completion] = field(default_factory=list)
    wall_s: float = 0.0
    busy_s: float = 0.0
    kernels: list[Kernel] = field(default_factory=list)
    """The one that took longest first."""
    memory: MemoryParts | None = None
    error: Exception | None = None
    """What ended the run early."""

    @property
    def idle_share(self) -> float:
        """The share of the wall time in which no kernel was at work: Python, the scheduler, launches."""
        return 1 - self.busy_s / self.wall_s if self.wall_s else 0.0

    @classmethod
    def of(cls, engine: Any, sequences: list[Sequence], path: Path | None) -> "Profile":
        """Run `sequences` on `engine`, write the trace to `path`, return what was seen, also if it failed midway."""
        made, device = cls(), engine.device

        def whole() -> None:
            started = device.clock()
            try:
                for _ in engine.run(sequences):
                    pass
            except Exception as error:
                made.error = error  # the trace so far is what one wants to see then
            device.synchronize()
            made.wall_s = device.clock() - started

        if path is not None:
            check_path(path)
        kind = device.torch_device.type
        device.synchronize()  # else what was queued before is at work in the trace
        trace = Trace.of(whole, kind, memory=True)
        records = trace.records
        if path is not None:
            trace.write(path, tracks(records, engine.observer.turns, engine.observer.log))
        made.completions = [sequence.completion() for sequence in sequences]
        made.memory = MemoryParts.of(engine, peak_bytes(records, kind))
        work = [record for record in records if _works(record, kind)]
        made.busy_s = covered((record.start_ns(), record.end_ns()) for record in work) / 1e9
        made.kernels = kernels_of(work)
        return made


def _works(record: Any, kind: str) -> bool:
    """Whether it is a kernel of a card, or on a CPU an operator; not a range, a launch, or a note of memory."""
    if record.is_user_annotation() or record.name() == MEMORY:
        return False
    if kind == "cpu":
        return "::" in record.name() or "_fused_" in record.name()
    return str(record.device_type()) == f"DeviceType.{kind.upper()}"


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """How much time lies in at least one of the spans (start, end), which come by their start."""
    total, until = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def kernels_of(records: Iterable[Any]) -> list[Kernel]:
    """Calls and own seconds by name; records by their start, outer ones first. One's own is what no inner one took."""
    calls: dict[str, int] = defaultdict(int)
    own: dict[str, int] = defaultdict(int)
    stacks: dict[tuple[Any, int], list[tuple[str, int]]] = defaultdict(list)  # of each thread or stream: (name, end)
    for record in records:
        name, start, end = record.name(), record.start_ns(), record.end_ns()
        stack = stacks[record.device_resource_id(), record.start_thread_id()]
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack:
            own[stack[-1][0]] -= end - start
        own[name] += end - start
        calls[name] += 1
        stack.append((name, end))
    made = [Kernel(name, calls[name], own[name] / 1e9) for name in calls]
    return sorted(made, key=lambda kernel: kernel.seconds, reverse=True)
