"""SimulatedDevice: a GPU that is not there, and a hostile one: what would go wrong on a card goes wrong on it.

A graph is recorded as a card records it: as operations on addresses. So a replay does not see what Python has rebound
since, finds in the memory of its graphs whatever another has left there, and fails where a buffer is gone.
Streams go their own ways while the device is watched (see `streams`); elsewhere all is done at once, as on a CPU.

    device = SimulatedDevice()
    engine = engine_cls(model, tokenizer, Options(device=device))
    with device.watching():
        engine.generate(...)
    device.ordering.races                       # what came in no order, by name
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minfer.core.device import CPU, Graph, Stream
from minfer.course.machines.counting import OnHostRead
from minfer.course.machines.operations import Address, Operation, exchanged, listed, poison, storage_id
from minfer.course.machines.ordering import HOST, Access, Clock, Ordering, merge
from minfer.course.machines.streams import MAIN, ReadsOf, SimulatedMoment, SimulatedStream, Watch


class SimulatedDevice(CPU):
    """A host that behaves as a card does. `free`: the bytes that it says are free; default: the host's own."""

    works_beside_host = True

    def __init__(self, free: int | None = None) -> None:
        self.free = free
        self.graphs: weakref.WeakSet[SimulatedGraph] = weakref.WeakSet()
        self.captures = 0
        self.replays = 0
        self.host_clock: Clock = {HOST: 0}
        self.main = SimulatedStream(self, MAIN)
        self.streams = [self.main]
        self.entered: list[SimulatedStream] = []
        self.host_memory: dict[int, torch.UntypedStorage] = {}
        self.ordering = Ordering()
        self.synchronizations = 0  # of the whole device
        self.waits = 0  # of the host, for anything
        self.stalls = 0  # those of them after which the model's stream had nothing left to do

    def free_memory(self) -> int:
        """As given, whatever is allocated."""
        return super().free_memory() if self.free is None else self.free

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In this context work is queued on streams, and it is seen who waits for what."""
        with uncompiled(), ReadsOf(self), Watch(self):
            yield

    @property
    def current(self) -> SimulatedStream:
        """The stream that work goes to now."""
        return self.entered[-1] if self.entered else self.main

    def current_stream(self) -> Stream:
        """The same, as engines know it."""
        return self.current

    def stream(self) -> Stream:
        """One more."""
        self.streams.append(SimulatedStream(self, f"stream {len(self.streams)}"))
        return self.streams[-1]

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the host, with nothing in it that anybody could take for a result."""
        made = torch.full(shape, poison(dtype), dtype=dtype)
        self.host_memory[storage_id(made)] = made.untyped_storage()
        return made

    def is_host_memory(self, tensor: Tensor) -> bool:
        """Whether it is pinned, or was made of what is."""
        return storage_id(tensor) in self.host_memory

    def host_begins(self, what: str) -> Access:
        """The host does something itself, at once."""
        self.host_clock[HOST] += 1
        return Access(what, HOST, self.host_clock[HOST])

    def host_waits(self, clock: Clock) -> None:
        """The host goes on when all that `clock` covers is done."""
        self.waits += 1
        self.stalls += clock.get(MAIN, 0) >= self.main.clock[MAIN]
        merge(self.host_clock, clock)
        SimulatedMoment(self, clock).come()

    def synchronize(self) -> None:
        """Wait for all streams."""
        self.synchronizations += 1
        for stream in self.streams:
            self.host_waits(stream.clock)

    def graph(self, work: Callable[[], None], beside: Graph | None = None) -> Graph:
        """Warm up, then record. All graphs share one memory, whether they say so or not: that is the harder case."""
        graph = SimulatedGraph(self, work)
        self.graphs.add(graph)
        self.captures += 1
        return graph


def uncompiled() -> Any:
    """A context in which what was compiled runs as it was written: torch compiles nothing that is seen by a mode."""
    return torch.compiler.set_stance("force_eager")


class SimulatedGraph(Graph):
    """Operations in their order. What they were given is held by its address only, as a card holds it."""

    def __init__(self, device: SimulatedDevice, work: Callable[[], None]) -> None:
        self.device = device
        work()
        self.tape = Tape()
        with ExitStack() as modes:
            modes.enter_context(uncompiled())
            modes.enter_context(self.tape)
            modes.enter_context(NoHostReads())
            work()
        self.is_spoilt = False
        self.spoil()

    def replay(self) -> None:
        """Do the operations again, after all that graphs have made is spoilt: other replays use that memory too."""
        for graph in self.device.graphs:
            graph.spoil()
        self.is_spoilt = False
        self.device.replays += 1
        for operation in self.tape.operations:
            operation.repeat()

    def spoil(self) -> None:
        """Overwrite all that this graph has made, unless that was done since its last replay."""
        if self.is_spoilt:
            return
        with torch.inference_mode():
            for tensor in self.tape.made:
                tensor.fill_(poison(tensor.dtype))
        self.is_spoilt = True


class Tape(TorchDispatchMode):
    """Records, while entered, the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.made: list[Tensor] = []
        self.own: set[int] = set()  # storages of what was made

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given: set[int] = set()
        recorded = exchanged((args, kwargs or {}), Tensor, lambda tensor: self._place(tensor, given))
        results = func(*args, **(kwargs or {}))
        made = [
            (place, result)
            for place, result in enumerate(listed(results))
            if isinstance(result, Tensor) and storage_id(result) not in given
        ]
        self.operations.append(Operation(func, recorded, made))
        self.made += [result for _, result in made]
        self.own |= {storage_id(result) for _, result in made}
        return results

    def _place(self, tensor: Tensor, given: set[int]) -> Tensor | Address:
        given.add(storage_id(tensor))
        return tensor if storage_id(tensor) in self.own else Address.of(tensor)


class NoHostReads(OnHostRead):
    """Refuses, while entered, to read a value on the host: while a card records, there is none."""

    def read(self, name: str, values: Any) -> None:
        """Raise `RuntimeError`."""
        raise RuntimeError(f"{name} reads a value on the host while a graph is recorded: it has none yet")
