"""What work on a device consists of, as far as an engine asks: graphs, stopwatches, streams and moments in them."""

from abc import ABC, abstractmethod


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


class Moment(ABC):
    """A place in a stream's queue: it has come when all that was queued there before is done."""

    @abstractmethod
    def wait(self) -> None:
        """Let the host wait for it."""


class Stream(ABC):
    """A queue of work; two of them run beside each other, in no order but the one that `follow` makes.

    `with stream:` queues there what is done inside.
    """

    @abstractmethod
    def __enter__(self) -> "Stream": ...

    @abstractmethod
    def __exit__(self, *raised: object) -> None: ...

    @abstractmethod
    def moment(self) -> Moment:
        """Where the queue ends now."""

    @abstractmethod
    def follow(self, moment: Moment) -> None:
        """What is queued here from now on is done after `moment`, which may be another stream's."""
