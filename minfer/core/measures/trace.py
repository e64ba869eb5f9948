"""Trace: what torch.profiler recorded of a piece of work."""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from torch.profiler import ProfilerActivity, profile

from minfer.core.errors import MinferError

MEMORY = "[memory]"
"""The name of a record that says how many bytes were taken, or given back if below 0."""


class Counter(NamedTuple):
    """What some quantities are from a moment on: a sample of a counter track, which Perfetto draws over time."""

    track: str
    ns: int  # in the records' time
    values: dict[str, float]


class Trace:
    """The records of a run, and the file that Perfetto opens."""

    def __init__(self, profiler: Any) -> None:
        self._profiler = profiler

    @classmethod
    def of(cls, run: Callable[[], object], device: str = "cpu", memory: bool = False) -> "Trace":
        """Run `run` under the profiler; on "cuda" the card's kernels are recorded too, with `memory` allocations."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler writes to the terminal when it begins and ends
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

    def write(self, path: Path, counters: Iterable[Counter] = ()) -> None:
        """Write Chrome's trace format, zipped if the name ends in .gz. Raises `MinferError` if that cannot be."""
        check_path(path)
        plain = path.with_name(f"{path.name}.{os.getpid()}.json")
        try:
            self._profiler.export_chrome_trace(str(plain))
            with plain.open() as source, _opened(path) as target:
                add_counters(source, target, counters)
        except (OSError, RuntimeError) as error:
            raise MinferError(f"cannot write the trace {path}: {error}") from error
        finally:
            plain.unlink(missing_ok=True)


def _opened(path: Path) -> TextIO:
    return gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w")


def add_counters(source: TextIO, target: TextIO, counters: Iterable[Counter]) -> None:
    """Copy a trace, with counter events before its own. A trace of minutes is gigabytes: it is never parsed.

    Its times are microseconds from the `baseTimeNanoseconds` of its head on.
    """
    base = 0
    for line in source:
        target.write(line)
        if found := re.search(r'"baseTimeNanoseconds": (\d+)', line):
            base = int(found[1])
        if '"traceEvents": [' in line:
            break
    for track, ns, values in counters:
        event = {"ph": "C", "name": track, "pid": os.getpid(), "ts": (ns - base) / 1000, "args": values}
        target.write(json.dumps(event) + ",\n")
    shutil.copyfileobj(source, target)


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
