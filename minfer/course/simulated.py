"""SimulatedDevice: a GPU that is not there, and a hostile one: what would go wrong on a card goes wrong on it.

A graph is recorded as a card records it: as operations on addresses. So a replay does not see what Python has rebound
since, finds in the memory of its graphs whatever another has left there, and fails where a buffer is gone.

    engine_cls(model, tokenizer, Options(device=SimulatedDevice()))
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from minfer.core.device import CPU, Graph
from minfer.course.counting import OnHostRead


class SimulatedDevice(CPU):
    """A host that behaves as a card does. `free`: the bytes that it says are free; default: the host's own."""

    def __init__(self, free: int | None = None) -> None:
        self.free = free
        self.graphs: weakref.WeakSet[SimulatedGraph] = weakref.WeakSet()
        self.captures = 0
        self.replays = 0

    def free_memory(self) -> int:
        """As given, whatever is allocated."""
        return super().free_memory() if self.free is None else self.free

    def graph(self, work: Callable[[], None], beside: Graph | None = None) -> Graph:
        """Warm up, then record. All graphs share one memory, whether they say so or not: that is the harder case."""
        graph = SimulatedGraph(self, work)
        self.graphs.add(graph)
        self.captures += 1
        return graph


class SimulatedGraph(Graph):
    """Operations in their order. What they were given is held by its address only, as a card holds it."""

    def __init__(self, device: SimulatedDevice, work: Callable[[], None]) -> None:
        self.device = device
        work()
        self.tape = Tape()
        with ExitStack() as modes:
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


def poison(dtype: torch.dtype) -> float | int | bool:
    """What nobody can take for a result: NaN, the largest integer, True."""
    if dtype.is_floating_point:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


@dataclass(frozen=True)
class Address:
    """Where a tensor lies that was there before the recording; it does not keep it alive."""

    storage: StorageWeakRef
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Address":
        """The address of `tensor`."""
        storage = StorageWeakRef(tensor.untyped_storage())
        return cls(storage, int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.dtype)

    def tensor(self) -> Tensor:
        """What lies there now. Raises `RuntimeError` if the memory was freed."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise RuntimeError(
                f"a graph reads freed memory: the {self.dtype} tensor of shape {tuple(self.shape)} that it was "
                "recorded with is gone: keep the buffers, and change what is in them"
            )
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.stride)


@dataclass
class Operation:
    """One recorded operation: its inputs by address, or as the tensors that the graph itself has made."""

    function: Callable[..., Any]
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]]  # positional, and by name
    made: list[tuple[int, Tensor]]  # place among the results, and the memory that it goes to

    def repeat(self) -> None:
        """Do it again, with what its inputs hold now."""
        args, kwargs = exchanged(self.inputs, Address, Address.tensor)
        results = listed(self.function(*args, **kwargs))
        for place, memory in self.made:
            memory.copy_(results[place])


def exchanged(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` of every `kind` in it, as deep as torch nests what it gives to an operation."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        return [exchanged(one, kind, change) for one in value]
    if isinstance(value, dict):
        return {name: exchanged(one, kind, change) for name, one in value.items()}
    return value


def listed(results: Any) -> list[Any]:
    """What an operation returns: one result, or several."""
    return list(results) if isinstance(results, list | tuple) else [results]


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
            if isinstance(result, Tensor) and _storage(result) not in given
        ]
        self.operations.append(Operation(func, recorded, made))
        self.made += [result for _, result in made]
        self.own |= {_storage(result) for _, result in made}
        return results

    def _place(self, tensor: Tensor, given: set[int]) -> Tensor | Address:
        given.add(_storage(tensor))
        return tensor if _storage(tensor) in self.own else Address.of(tensor)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class NoHostReads(OnHostRead):
    """Refuses, while entered, to read a value on the host: while a card records, there is none."""

    def read(self, name: str) -> None:
        """Raise `RuntimeError`."""
        raise RuntimeError(f"{name} reads a value on the host while a graph is recorded: it has none yet")
