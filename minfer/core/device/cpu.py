"""The CPU as a device: work is done when a call returns, so what is for queues of work has nothing to do."""

import os
from collections.abc import Callable

import torch
from torch import Tensor

from minfer.core.device.device import Device
from minfer.core.device.work import Graph, Moment, Stopwatch, Stream


class CPU(Device):
    """The host itself: work is done when a call returns."""

    torch_device = torch.device("cpu")
    works_beside_host = False

    def auto_dtype(self, stored: torch.dtype) -> tuple[torch.dtype, str]:
        """bfloat16 only where the CPU computes in it, else float32: halves without instructions are slower."""
        if stored == torch.bfloat16 and self.has_bfloat16():
            return stored, "as stored; this CPU has bfloat16 instructions"
        if stored in (torch.float32, torch.float64):
            return stored, "as stored"
        short = str(stored).removeprefix("torch.")
        return torch.float32, f"stored as {short}; on this CPU float32 is the faster and exacter choice"

    @staticmethod
    def has_bfloat16() -> bool:
        """Whether the CPU multiplies bfloat16 natively."""
        probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, probe, bool)() for probe in probes)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def graph(self, work: Callable[[], None], beside: Graph | None = None) -> Graph:
        """A CPU has no graphs: the stand-in does the work again at each replay, and nothing before."""
        return Repetition(work)

    def reserved_memory(self) -> int:
        """What is freed goes back to the system."""
        return 0

    def total_memory(self) -> int:
        """Physical memory of the machine in bytes."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def free_memory(self) -> int:
        """Memory that can be had without swapping, in bytes."""
        return _proc_bytes("/proc/meminfo", "MemAvailable:") or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf(
            "SC_PAGE_SIZE"
        )

    def used_memory(self) -> int:
        """Anonymous resident memory: mapped files are page cache, which the system can take back."""
        return _proc_bytes("/proc/self/status", "RssAnon:") or 0

    def stopwatch(self) -> Stopwatch:
        """By the clock."""
        return HostStopwatch(self)

    def stream(self) -> Stream:
        """The one queue that there is."""
        return HostStream()

    def current_stream(self) -> Stream:
        """The same."""
        return HostStream()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Any memory will do: nothing copies beside the host."""
        return torch.empty(shape, dtype=dtype)


class Repetition(Graph):
    """A graph's stand-in, by doing the work again: right wherever the graph is, and no faster than without."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def replay(self) -> None:
        """Do the work."""
        self.work()


class HostStopwatch(Stopwatch):
    """By the device's clock."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.started = self.stopped = 0.0

    def start(self) -> None:
        """Read the clock."""
        self.started = self.device.clock()

    def stop(self) -> None:
        """Read the clock."""
        self.stopped = self.device.clock()

    def done(self) -> bool:
        """Nothing is ever queued."""
        return True

    def seconds(self) -> float:
        """The time between."""
        return self.stopped - self.started


class HostMoment(Moment):
    """It has come."""

    def wait(self) -> None:
        """Nothing is ever queued."""


class HostStream(Stream):
    """Work is done as it is asked for, so it is in order."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing was begun."""

    def moment(self) -> Moment:
        """Now."""
        return HostMoment()

    def follow(self, moment: Moment) -> None:
        """It does."""


def _proc_bytes(path: str, key: str) -> int | None:
    """A `key   123 kB` line of a /proc file in bytes; None where there is no such file or line."""
    try:
        with open(path) as lines:
            for line in lines:
                if line.startswith(key):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
