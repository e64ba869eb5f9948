"""An NVIDIA card as a device: the only file that calls `torch.cuda`, but for the question whether there is a card."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from minfer.core.device.device import Device
from minfer.core.device.work import Graph, Moment, Stopwatch, Stream
from minfer.core.errors import DeviceError


class CUDA(Device):
    """An NVIDIA GPU."""

    works_beside_host = True

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

    def stream(self) -> Stream:
        """A CUDA stream, which waits for no other."""
        return CUDAStream(torch.cuda.Stream(self.torch_device))

    def current_stream(self) -> Stream:
        """The one that work is queued on now."""
        return CUDAStream(torch.cuda.current_stream(self.torch_device))

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory that the system does not move: only such is copied while host and card go on."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)


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


class CUDAMoment(Moment):
    """A CUDA event."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()
        self.event.record(stream)

    def wait(self) -> None:
        """Let the host wait for this event, and for nothing that was queued after it."""
        self.event.synchronize()


class CUDAStream(Stream):
    """A CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.entered: list[torch.cuda.StreamContext] = []

    def __enter__(self) -> Stream:
        self.entered.append(torch.cuda.stream(self.stream))
        self.entered[-1].__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self.entered.pop().__exit__(*raised)

    def moment(self) -> Moment:
        """An event, recorded here."""
        return CUDAMoment(self.stream)

    def follow(self, moment: Moment) -> None:
        """The card waits, the host does not."""
        assert isinstance(moment, CUDAMoment)
        self.stream.wait_event(moment.event)
