"""Device: the only door to the hardware. Every phase runs on a CPU through it, and tests put a simulated one there.

Nothing else in minfer calls `torch.cuda`.
"""

import os
import time
from abc import ABC, abstractmethod

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


class Device(ABC):
    """Where the model lives: its name for torch, its clock, its memory."""

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

    def dtype(self, wanted: str, stored: torch.dtype) -> tuple[torch.dtype, str]:
        """The dtype for weights, and why: `wanted` is a name or `auto`; `stored` is the checkpoint's."""
        if wanted != "auto":
            if wanted not in DTYPES:
                raise DeviceError(f"dtype {wanted!r} is unknown: use auto, {', '.join(DTYPES)}")
            return DTYPES[wanted], "as asked"
        return self.auto_dtype(stored)

    @abstractmethod
    def auto_dtype(self, stored: torch.dtype) -> tuple[torch.dtype, str]:
        """The best dtype for weights stored as `stored`, and why."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    @abstractmethod
    def total_memory(self) -> int:
        """Bytes of memory of the device."""

    @abstractmethod
    def free_memory(self) -> int:
        """Bytes that can still be allocated."""

    @abstractmethod
    def used_memory(self) -> int:
        """Bytes that this process holds on the device now, page cache not counted."""


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


class CUDA(Device):
    """An NVIDIA GPU."""

    def __init__(self, device: torch.device) -> None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise DeviceError(f"device {str(device)!r} is not there: torch sees {count} CUDA devices; use --device cpu")
        self.torch_device = torch.device("cuda", device.index if device.index is not None else 0)

    def auto_dtype(self, stored: torch.dtype) -> tuple[torch.dtype, str]:
        """The checkpoint's own; bfloat16 becomes float16 on cards from before Ampere."""
        if stored == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.float16, "stored as bfloat16, which this card lacks"
        return stored, "as stored"

    def synchronize(self) -> None:
        """Wait for every stream of the card."""
        torch.cuda.synchronize(self.torch_device)

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
