"""TimelineDevice: a card whose time is prescribed, and which writes down what host, model and copies did when."""

from typing import NamedTuple

from minfer.core.device import Stream
from minfer.course.machines.clocks import ClockedDevice, ClockedStream

HOST, MODEL, COPIES = "host", "model's stream", "copy stream"
LANES = (HOST, MODEL, COPIES)


class Span(NamedTuple):
    """Something that was done, in seconds since the device was made."""

    lane: str
    name: str
    start: float
    end: float


class TimelineDevice(ClockedDevice):
    """Work goes on beside the host. `copy_s`: seconds that a copy takes."""

    def __init__(self, copy_s: float) -> None:
        super().__init__(lazy=True)
        self.copy_s = copy_s
        self.spans: list[Span] = []

    def work(self, name: str, seconds: float) -> None:
        """The host does something."""
        self.spans.append(Span(HOST, name, self.now, self.now + seconds))
        self.wait(seconds)

    def queue(self, seconds: float) -> None:
        """As before, noted."""
        start = max(self.now, self.free_at)
        super().queue(seconds)
        self.spans.append(Span(MODEL, "forward", start, self.free_at))

    def stream(self) -> Stream:
        """A queue for copies, which are noted."""
        return NotedStream(self)


class NotedStream(ClockedStream):
    """Each `with` is one copy."""

    device: TimelineDevice

    def __exit__(self, *raised: object) -> None:
        """It is queued behind all that it was told to follow."""
        start = max(self.device.now, self.free_at)
        self.free_at = start + self.device.copy_s
        self.device.spans.append(Span(COPIES, "ids", start, self.free_at))
