"""Streams of a simulated card: copies are done as late as they may be, and what nobody has waited for is spoilt.

A copy that is queued on a stream of its own is done only when something waits for it; until then there is poison where
it goes. What comes in no order (see `ordering`) is noted in `races` and yields poison, every time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from minfer.core.device import Moment, Stream
from minfer.course.machines.counting import OnHostRead
from minfer.course.machines.operations import Address, Operation, poison, storage_id
from minfer.course.machines.ordering import Access, Clock, accesses, merge

if TYPE_CHECKING:
    from minfer.course.machines.simulated import SimulatedDevice

COPY = torch.ops.aten.copy_.default
MAIN = "the model's stream"


unwatched = torch.utils._python_dispatch._disable_current_modes
"""In this context torch does what it is told, and nobody is asked."""


@dataclass
class Queued:
    """A copy that is still to be done: the stream's operation of that number."""

    number: int
    operation: Operation
    is_spoilt: bool

    def arrive(self) -> None:
        """Do it, on what lies now where it reads; memory that was freed is somebody else's by then."""
        try:
            self.operation.repeat()
        except RuntimeError:
            self.is_spoilt = True
        if self.is_spoilt:
            self.spoil()

    def spoil(self) -> None:
        """Put poison where it goes."""
        target = self.operation.inputs[0][0].tensor()
        target.fill_(poison(target.dtype))


class SimulatedMoment(Moment):
    """What is done when it has come: `clock`."""

    def __init__(self, device: "SimulatedDevice", clock: Clock) -> None:
        self.device, self.clock = device, clock

    def wait(self) -> None:
        """The host goes on when it has come."""
        self.device.host_waits(self.clock)

    def come(self) -> None:
        """Do what was queued before it."""
        for stream in self.device.streams:
            stream.drain(self.clock.get(stream.name, 0))


class SimulatedStream(Stream):
    """A queue; only the copies of a stream that is not the model's are late."""

    def __init__(self, device: "SimulatedDevice", name: str) -> None:
        self.device, self.name = device, name
        self.clock: Clock = {name: 0}
        self.queue: deque[Queued] = deque()

    def __enter__(self) -> Stream:
        self.device.entered.append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        self.device.entered.pop()

    def moment(self) -> Moment:
        """Where the queue ends now."""
        return SimulatedMoment(self.device, dict(self.clock))

    def follow(self, moment: Moment) -> None:
        """What the moment covers is done for this stream too."""
        assert isinstance(moment, SimulatedMoment)
        merge(self.clock, moment.clock)
        if self.name == MAIN:  # whose work is done at once
            moment.come()

    def begin(self, what: str) -> Access:
        """One more operation, which the host has just queued: so it comes after all that the host has waited for."""
        merge(self.clock, self.device.host_clock)
        self.clock[self.name] += 1
        return Access(what, self.name, self.clock[self.name])

    def drain(self, count: int) -> None:
        """Do what was queued as one of the first `count` operations."""
        while self.queue and self.queue[0].number <= count:
            with unwatched():
                self.queue.popleft().arrive()


class Watch(TorchDispatchMode):
    """While entered, every operation of torch is put on the stream that is current, or done by the host."""

    def __init__(self, device: "SimulatedDevice") -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, stream = kwargs or {}, self.device.current
        if func is COPY and stream.name != MAIN:
            return self.queue(stream, args, kwargs)
        results = func(*args, **kwargs)
        reads, writes = accesses(func, args, kwargs, results)
        if not writes:
            return results
        on_host = func is not COPY and any(self.device.is_host_memory(tensor) for tensor in (*reads, *writes))
        access = self.device.host_begins(str(func)) if on_host else stream.begin(str(func))
        clock = self.device.host_clock if on_host else stream.clock
        if self.device.ordering.note(access, clock, reads, writes):
            for tensor in writes:
                tensor.fill_(poison(tensor.dtype))
        if on_host:
            self.device.host_memory |= {storage_id(tensor): tensor.untyped_storage() for tensor in writes}
        elif func is COPY and not _is_late(args, kwargs) and any(map(self.device.is_host_memory, args[:2])):
            self.device.host_waits(stream.clock)
        return results

    def queue(self, stream: SimulatedStream, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Put off a copy; until it is done there is poison where it goes."""
        target, source = args[:2]
        access = stream.begin(str(COPY))
        spoilt = self.device.ordering.note(access, stream.clock, [source], [target])
        addresses = tree_map_only(Tensor, Address.of, (args, dict(kwargs)))
        stream.queue.append(Queued(access.count, Operation(COPY, addresses, []), spoilt))
        stream.queue[-1].spoil()
        if not _is_late(args, kwargs):
            self.device.host_waits(stream.clock)
        return target


def _is_late(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a copy was asked for without waiting for it."""
    return bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))


class ReadsOf(OnHostRead):
    """While entered, what the host reads of the card's memory makes it wait; of its own memory it must have waited."""

    def __init__(self, device: "SimulatedDevice") -> None:
        super().__init__()
        self.device = device

    def read(self, name: str, values: Any) -> None:
        """Wait, or see that all is there."""
        if not isinstance(values, Tensor):
            return
        if not self.device.is_host_memory(values):
            self.device.host_waits(self.device.current.clock)
        elif self.device.ordering.note(self.device.host_begins(name), self.device.host_clock, [values], []):
            with unwatched():
                values.fill_(poison(values.dtype))
