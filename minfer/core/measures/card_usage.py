"""CardUsage: how busy a card is, by its driver's own counters, while something runs."""

import statistics
import subprocess
from typing import Any

from minfer.core.device import Device

QUERY = "utilization.gpu,utilization.memory"
EVERY = 100  # milliseconds; the driver's counters are averages over up to a second


class CardUsage:
    """`with CardUsage(device) as usage: …`; then percentages, or None and the reason in `problem`.

    busy          share of the time in which a kernel ran, however few of the card's processors (SM) it used
    memory_busy   share of the time in which the card's memory was read or written, however slowly
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.busy: float | None = None
        self.memory_busy: float | None = None
        self.problem = ""
        self._process: Any = None

    def __enter__(self) -> "CardUsage":
        if not self.device.uuid:
            self.problem = f"{self.device.torch_device.type} has no such counters"
            return self
        asked = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", self.device.uuid]
        try:
            self._process = subprocess.Popen([*asked, "-lms", str(EVERY)], stdout=subprocess.PIPE, text=True)
        except OSError as error:
            self.problem = f"nvidia-smi cannot be run: {error.strerror}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        said, _ = self._process.communicate()
        readings = [found for line in said.splitlines() if (found := _numbers(line))]
        if not readings:
            self.problem = "nvidia-smi gave no reading"
            return
        self.busy, self.memory_busy = (statistics.mean(column) for column in zip(*readings, strict=True))


def _numbers(line: str) -> tuple[float, float] | None:
    """`87, 41` as numbers; None for what a card does not tell, and for a line that was cut off."""
    try:
        first, second = (float(part) for part in line.split(","))
    except ValueError:
        return None
    return first, second
