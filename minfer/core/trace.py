"""Trace: what torch.profiler recorded of a piece of work."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from minfer.core.errors import MinferError

MEMORY = "[memory]"
"""The name of a record that says how many bytes were taken, or given back if below 0."""


class Trace:
    """The records of a run, and the file that Perfetto opens."""

    def __init__(self, profiler: Any) -> None:
        self._profiler = profiler

    @classmethod
    def of(cls, run: Callable[[], object], device: str = "cpu", memory: bool = False) -> "Trace":
        """Run `run` under the profiler; on "cuda" the card's kernels are recorded too, with `memory` allocations."""
        activities = [ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities, profile_memory=memory) as profiler:
            run()
        return cls(profiler)

    @property
    def records(self) -> list[Any]:
        """Calls and kernels by their start, outer ones first.

        These are the profiler's raw records: a run of some hundred steps has a million, from which `profiler.events()`
        would make Python objects for a minute and ten gigabytes.
        """
        records = self._profiler.profiler.kineto_results.events()
        return sorted(records, key=lambda record: (record.start_ns(), -record.duration_ns()))

    def write(self, path: Path) -> None:
        """Write Chrome's trace format, zipped if the name ends in .gz. Raises `MinferError` if that cannot be."""
        check_path(path)
        try:
            self._profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise MinferError(f"cannot write the trace {path}: {error}") from error


def check_path(path: Path) -> None:
    """Raise `MinferError` unless a file of that name can be in a folder that exists."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise MinferError(f"cannot write the trace {path}: name a file in a folder that exists")


def peak_bytes(records: Iterable[Any], device: str) -> int:
    """The most bytes that were held on "cpu" or "cuda" above what was held at the start, by a trace with memory."""
    held = highest = 0
    for record in records:
        if record.name() == MEMORY and str(record.device_type()) == f"DeviceType.{device.upper()}":
            held += record.nbytes()
            highest = max(highest, held)
    return highest
