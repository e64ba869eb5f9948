"""Device: what every phase asks of the hardware."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from minfer.core.device.work import Graph, Stopwatch, Stream
from minfer.core.errors import DeviceError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The dtypes that weights can be held in, by name."""


class Device(ABC):
    """Where the model lives: its name for torch, its clock, its memory, its graphs."""

    torch_device: torch.device
    works_beside_host: bool
    """Whether what is queued is done while the host does something else."""

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
        from minfer.core.device.cpu import CPU  # these are made of this class
        from minfer.core.device.cuda import CUDA

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
    def stopwatch(self) -> Stopwatch:
        """For work of this device."""

    @abstractmethod
    def stream(self) -> Stream:
        """Another queue of work, beside the one that work goes to unless told otherwise."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """The queue that work goes to now."""

    @abstractmethod
    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the host, not initialised, that the device copies from and to while both go on."""

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
