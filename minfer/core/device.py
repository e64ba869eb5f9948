"""Device: the only door to the hardware. Every phase runs on a CPU through it, and tests put a simulated one there.

Nothing else in minfer calls `torch.cuda`.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from torch import nn

from minfer.core.errors import DeviceError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The dtypes that weights can be held in, by name."""


class Graph(ABC):
    """Work that was recorded once and is done again as a whole, on the same memory, without asking Python."""

    @abstractmethod
    def replay(self) -> None:
        """Do the work again, on what its buffers hold now. On a card it is queued, like any other work."""


class Stopwatch(ABC):
    """Seconds that work takes on the device, from when it gets to `start` to when it gets to `stop`; used again."""

    @abstractmethod
    def start(self) -> None:
        """Note where the queued work is now."""

    @abstractmethod
    def stop(self) -> None:
        """Note where the queued work is now, after `start`."""

    @abstractmethod
    def done(self) -> bool:
        """Whether the device has got to `stop`, so that `seconds` need not wait."""

    @abstractmethod
    def seconds(self) -> float:
        """The time between; waits for the device to get to `stop`."""


class Device(ABC):
    """Where the model lives: its name for torch, its clock, its memory, its graphs."""

    torch_device: torch.device

    @staticmethod
    def get(name: "str | torch.device | Device" = "auto") -> "Device":
        """The device of that name: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`. Raises `DeviceError`."""
        if isinstance(name, Device):
            return name
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except (RuntimeError, TypeError) as error:
            raise DeviceError(f"device {name!r} is unknown: use auto, cpu, cuda or cuda:N") from error
        if device.type == "cpu":
            return CPU()
        if device.type == "cuda":
            return CUDA(device)
        raise DeviceError(f"device {str(name)!r} is not supported: use auto, cpu, cuda or cuda:N")

    @staticmethod
    def of(model: nn.Module, default: "str | Device" = "auto") -> "Device":
        """The device that `model` lives on; `default` if it has no parameters, or is a Device itself."""
        parameter = next(model.parameters(), None)
        if isinstance(default, Device) or parameter is None:
            return Device.get(default)
        device = Device.get(parameter.device)
        if default != "auto" and Device.get(default).torch_device != device.torch_device:
            raise DeviceError(
                f"the model is on {parameter.device}, the option says {default}: move the model, or leave it at auto"
            )
        return device

    def clock(self) -> float:
        """Monotonic seconds on the host. Work that was queued may still run: `synchronize` first to time it."""
        return time.perf_counter()

    def stopwatch(self) -> Stopwatch:
        """For work of this device; here that of a host, where work is done when a call returns."""
        return HostStopwatch(self)

    def dtype(self, wanted: str, stored: torch.dtype) -> tuple[torch.dtype, str]:
        """The dtype for weights, and why: `wanted` is a name or `auto`; `stored` is the checkpoint's."""
        if wanted != "auto":
            if wanted not in DTYPES:
                raise DeviceError(f"dtype {wanted!r} is unknown: use auto, {', '.join(DTYPES)}")
            return DTYPES[wanted], "as asked"
        return self.auto_dtype(stored)

    @property
    def uuid(self) -> str:
        """The name under which a card's driver knows it; empty elsewhere."""
        return ""

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's compute capability, which says what products a card has; (0, 0) elsewhere."""
        return 0, 0

    @abstractmethod
    def auto_dtype(self, stored: torch.dtype) -> tuple[torch.dtype, str]:
        """The best dtype for weights stored as `stored`, and why."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    @abstractmethod
    def graph(self, work: Callable[[], None], beside: Graph | None = None) -> Graph:
        """Record what `work` does, so that it can be replayed.

        `work` reads and writes tensors that exist before it and stay where they are; it reads no value on the host,
        and what it makes itself is gone after it. What Python does in it is done now and not at a replay. `beside`: a
        graph that never runs while this one does, so both may use one memory; record the largest first. Raises
        `RuntimeError` for work that cannot be recorded.
        """

    @abstractmethod
    def reserved_memory(self) -> int:
        """Bytes that torch has taken from the device and keeps, in use or not; 0 where it keeps nothing."""

    @abstractmethod
    def total_memory(self) -> int:
        """Bytes of memory of the device."""

    @abstractmethod
    def free_memory(self) -> int:
        """Bytes that can still be allocated."""

    @abstractmethod
    def used_memory(self) -> int:
        """Bytes that this process holds on the device now, page cache not counted."""

    def taken_memory(self) -> int:
        """Bytes that are taken because of this process, tensors or not; on a card also what other processes took."""
        return self.used_memory()


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


class CPU(Device):
    """The host itself: work is done when a call returns."""

    torch_device = torch.device("cpu")

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


class Repetition(Graph):
    """A graph's stand-in, by doing the work again: right wherever the graph is, and no faster than without."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def replay(self) -> None:
        """Do the work."""
        self.work()


class CUDA(Device):
    """An NVIDIA GPU."""

    def __init__(self, device: torch.device) -> None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise DeviceError(f"device {str(device)!r} is not there: torch sees {count} CUDA devices; use --device cpu")
        self.torch_device = torch.device("cuda", device.index if device.index is not None else 0)

    @property
    def uuid(self) -> str:
        """Of the card itself: its number here may be another one to the driver."""
        return f"GPU-{torch.cuda.get_device_properties(self.torch_device).uuid}"

    @property
    def capability(self) -> tuple[int, int]:
        """8.9 and later multiply in float8."""
        return torch.cuda.get_device_capability(self.torch_device)

    def auto_dtype(self, stored: torch.dtype) -> tuple[torch.dtype, str]:
        """The checkpoint's own; bfloat16 becomes float16 on cards from before Ampere."""
        if stored == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.float16, "stored as bfloat16, which this card lacks"
        return stored, "as stored"

    def synchronize(self) -> None:
        """Wait for every stream of the card."""
        torch.cuda.synchronize(self.torch_device)

    def graph(self, work: Callable[[], None], beside: Graph | None = None) -> Graph:
        """A CUDA graph, in the same pool of memory as `beside`."""
        with torch.cuda.device(self.torch_device):
            return CapturedGraph(work, self.capture_stream, beside)

    @cached_property
    def capture_stream(self) -> torch.cuda.Stream:
        """Where graphs are recorded: torch refuses to on the default stream, and shares a pool best on one stream."""
        return torch.cuda.Stream(self.torch_device)

    def reserved_memory(self) -> int:
        """Bytes in torch's pools, those of graphs among them."""
        return torch.cuda.memory_reserved(self.torch_device)

    def total_memory(self) -> int:
        """Bytes on the card."""
        return torch.cuda.mem_get_info(self.torch_device)[1]

    def free_memory(self) -> int:
        """Bytes that no process has taken, and those that torch holds but does not use."""
        held = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return torch.cuda.mem_get_info(self.torch_device)[0] + held

    def used_memory(self) -> int:
        """Bytes of live tensors of this process."""
        return torch.cuda.memory_allocated(self.torch_device)

    def taken_memory(self) -> int:
        """Live tensors, torch's pools, the context, libraries; and whatever other processes have on the card."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free

    def stopwatch(self) -> Stopwatch:
        """Two events in the current stream."""
        return EventStopwatch()


class EventStopwatch(Stopwatch):
    """By two CUDA events: the card notes the time when it gets to them."""

    def __init__(self) -> None:
        self.started, self.stopped = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        """Queue the first event."""
        self.started.record()

    def stop(self) -> None:
        """Queue the second event."""
        self.stopped.record()

    def done(self) -> bool:
        """Whether the card has got to the second event; does not wait."""
        return self.stopped.query()

    def seconds(self) -> float:
        """The time between; waits for the second event."""
        self.stopped.synchronize()
        return self.started.elapsed_time(self.stopped) / 1000


class CapturedGraph(Graph):
    """A `torch.cuda.CUDAGraph`."""

    warmups = 2
    """Runs before the recording: libraries make their workspaces, and compilers compile, when they first run."""

    def __init__(self, work: Callable[[], None], stream: torch.cuda.Stream, beside: Graph | None) -> None:
        self.work = work  # and with it whatever holds the memory whose addresses are recorded
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warmups):
                work()
        self.captured = torch.cuda.CUDAGraph()
        pool = beside.captured.pool() if isinstance(beside, CapturedGraph) else None
        with torch.cuda.graph(self.captured, pool, stream, capture_error_mode="thread_local"):  # others may go on
            work()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self) -> None:
        """Queue the recorded work on the current stream."""
        self.captured.replay()


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
