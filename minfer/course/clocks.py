"""ClockedDevice: a device whose time is prescribed, so that what an engine measures can be known beforehand."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from minfer.core.attention import Attention
from minfer.core.device import CPU, Graph, Stopwatch
from minfer.course.counting import OnHostRead


class ClockedDevice(CPU):
    """Time passes here only by work, and by `wait`. Work that is queued takes the host no time until it must wait.

    `lazy`: work goes on beside the host, as on a card; else the host does it itself. `capture`: seconds that recording
    a graph takes. `synchronizations` counts how often the engine asked to wait for everything.
    """

    def __init__(self, lazy: bool = False, capture: float = 0.0) -> None:
        self.lazy, self.capture = lazy, capture
        self.now = self.free_at = 0.0  # of the host; and when the device has done what is queued
        self.captures = self.synchronizations = 0

    def clock(self) -> float:
        """The host's time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """The host does something else for so long."""
        self.now += seconds

    def queue(self, seconds: float) -> None:
        """Work of so many seconds is given to the device."""
        self.free_at = max(self.now, self.free_at) + seconds
        if not self.lazy:
            self.catch_up()

    def catch_up(self) -> None:
        """The host waits until the device has done everything."""
        self.now = max(self.now, self.free_at)

    def synchronize(self) -> None:
        """As `catch_up`, counted."""
        self.synchronizations += 1
        self.catch_up()

    def stopwatch(self) -> Stopwatch:
        """By the device's own time."""
        return ClockedStopwatch(self)

    def graph(self, work: Callable[[], None], beside: Graph | None = None) -> Graph:
        """As on a CPU, after the time that recording takes."""
        self.captures += 1
        self.wait(self.capture)
        return super().graph(work, beside)


class ClockedStopwatch(Stopwatch):
    """Reads the moments at which the device gets to its work."""

    def __init__(self, device: ClockedDevice) -> None:
        self.device = device
        self.started = self.stopped = 0.0

    def start(self) -> None:
        """Where the queue ends now."""
        self.started = max(self.device.now, self.device.free_at)

    def stop(self) -> None:
        """Where the queue ends now."""
        self.stopped = max(self.device.now, self.device.free_at)

    def done(self) -> bool:
        """Whether the host's time is past that."""
        return self.device.now >= self.stopped

    def seconds(self) -> float:
        """The time between; waits."""
        self.device.now = max(self.device.now, self.stopped)
        return self.stopped - self.started


class ReadsWait(OnHostRead):
    """While entered, reading a tensor's values makes the host wait for the device."""

    def __init__(self, device: ClockedDevice) -> None:
        super().__init__()
        self.device = device

    def read(self, name: str, values: Any) -> None:
        """Wait."""
        self.device.catch_up()


class Costly(nn.Module):
    """A model whose forwards take the seconds `costs`, one after another; the last holds for all further ones."""

    def __init__(self, model: nn.Module, device: ClockedDevice, costs: Sequence[float]) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.device, self.costs = device, list(costs)

    def forward(
        self, input_ids: Tensor, positions: Tensor, attention: Sequence[Attention], rows: Tensor | None = None
    ) -> Tensor:
        """As `Transformer.forward`."""
        self.device.queue(self.costs.pop(0) if len(self.costs) > 1 else self.costs[0])
        return self.model(input_ids, positions, attention, rows)
