"""ClockedDevice: a device whose time is prescribed, so that what an engine measures can be known beforehand."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.attention import Attention
from minfer.core.device import CPU, Graph, Moment, Stopwatch, Stream
from minfer.course.machines.counting import OnHostRead


class ClockedDevice(CPU):
    """Time passes here only by work, and by `wait`. Work that is queued takes the host no time until it must wait.

    `lazy`: work goes on beside the host, as on a card; else the host does it itself. `capture`: seconds that recording
    a graph takes. `synchronizations` counts how often the engine asked to wait for everything.
    """

    def __init__(self, lazy: bool = False, capture: float = 0.0) -> None:
        self.lazy, self.capture = lazy, capture
        self.works_beside_host = lazy
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

    def stream(self) -> Stream:
        """Its work takes no time, but waits for what it follows."""
        return ClockedStream(self)

    def current_stream(self) -> Stream:
        """The queue of `queue`."""
        return ModelStream(self)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the host: what is read there is waited for no longer."""
        return torch.empty(shape, dtype=dtype).as_subclass(HostNumbers)

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


class ClockedMoment(Moment):
    """A moment whose time is known."""

    def __init__(self, device: ClockedDevice, at: float) -> None:
        self.device, self.at = device, at

    def wait(self) -> None:
        """The host's time is then at least that."""
        self.device.now = max(self.device.now, self.at)


class ClockedStream(Stream):
    """A queue for copies, which take no time."""

    def __init__(self, device: ClockedDevice) -> None:
        self.device = device
        self.free_at = 0.0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing was begun."""

    def moment(self) -> Moment:
        """When all is done that it was told to follow."""
        return ClockedMoment(self.device, max(self.device.now, self.free_at))

    def follow(self, moment: Moment) -> None:
        """It is done no earlier."""
        assert isinstance(moment, ClockedMoment)
        self.free_at = max(self.free_at, moment.at)


class ModelStream(ClockedStream):
    """The device's own queue."""

    def moment(self) -> Moment:
        """When the device has done what was given to it so far."""
        return ClockedMoment(self.device, max(self.device.now, self.device.free_at))


class HostNumbers(Tensor):
    """A tensor in the host's memory, and whatever is made of it."""


class ReadsWait(OnHostRead):
    """While entered, reading a tensor's values makes the host wait for the device, unless it is the host's own."""

    def __init__(self, device: ClockedDevice) -> None:
        super().__init__()
        self.device = device

    def read(self, name: str, values: Any) -> None:
        """Wait."""
        if not isinstance(values, HostNumbers):
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
