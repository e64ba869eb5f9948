"""PeakMemory: the most memory that a piece of work held at any moment."""

import ctypes
import gc
import sys
import threading

from minfer.core.device import Device

INTERVAL = 0.001  # seconds between readings; a tensor worth counting takes longer to fill


class PeakMemory:
    """`with PeakMemory(device) as peak: …`; then `peak.bytes` is the most that was held above what was held before.

    A thread reads `Device.used_memory()` every millisecond: on a CPU the resident anonymous memory of the process, so
    files that are mapped to be read do not count; on a GPU the bytes of live tensors.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.before = self.highest = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        _give_back_what_was_freed()
        self._thread.start()  # first: its stack is none of the work's memory
        self.before = self.device.used_memory()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.sample()

    @property
    def bytes(self) -> int:
        """The peak so far, in bytes."""
        return max(0, self.highest - self.before)

    def sample(self) -> None:
        """Take a reading now."""
        self.highest = max(self.highest, self.device.used_memory())

    def _watch(self) -> None:
        while not self._done.wait(INTERVAL):
            self.sample()


def _give_back_what_was_freed() -> None:
    """An allocator keeps freed pages for later; work that grows into them would not be seen. glibc can be told."""
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
