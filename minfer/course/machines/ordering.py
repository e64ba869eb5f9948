"""Ordering: which work comes before which, by what streams and host have waited for, and what is in no order at all.

Every stream counts its operations; a clock says of each stream up to which of them all is done. Two operations on one
memory, of which one writes, race unless the clock of the later covers the earlier.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from minfer.course.machines.operations import storage_id

HOST = "the host"
EMPTY = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty.default)
Clock = dict[str, int]


def merge(clock: Clock, other: Clock) -> None:
    """Let `clock` cover what `other` covers."""
    for name, count in other.items():
        clock[name] = max(clock.get(name, 0), count)


@dataclass(frozen=True)
class Access:
    """One operation on some memory."""

    what: str
    where: str  # the stream, or the host
    count: int  # of the operations there

    def covered(self, clock: Clock) -> bool:
        """Whether it is done for whoever has that clock."""
        return clock.get(self.where, 0) >= self.count

    def __str__(self) -> str:
        return f"{self.what} on {self.where}"


@dataclass
class Memory:
    """Who has written it last, and who has read it since."""

    storage: StorageWeakRef  # kept, so that no other memory gets its number
    written: Access | None = None
    read: dict[str, Access] = field(default_factory=dict)


class Ordering:
    """Notes every access; `races` names those that come in no order."""

    def __init__(self) -> None:
        self.memories: dict[int, Memory] = {}
        self.races: list[str] = []

    def note(self, access: Access, clock: Clock, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> bool:
        """An operation of that clock reads and writes these. Whether it races with an earlier one."""
        before = len(self.races)
        for tensor in reads:
            memory = self.memory(tensor)
            self.compare(access, "reads", clock, memory.written, "is written by", tensor)
            memory.read[access.where] = access
        for tensor in writes:
            memory = self.memory(tensor)
            self.compare(access, "writes", clock, memory.written, "is written by", tensor)
            for other in memory.read.values():
                self.compare(access, "writes", clock, other, "is still read by", tensor)
            memory.written, memory.read = access, {}
        return len(self.races) > before

    def compare(self, access: Access, does: str, clock: Clock, other: Access | None, done: str, tensor: Tensor) -> None:
        """Note a race unless `other` is done by then, or is the same operation."""
        if other is not None and other != access and not other.covered(clock):
            what = f"{tensor.dtype} tensor of shape {tuple(tensor.shape)}"
            self.races.append(f"{access} {does} a {what} that {done} {other}: nothing has waited for that")

    def memory(self, tensor: Tensor) -> Memory:
        """What is known of the memory behind a tensor."""
        number = storage_id(tensor)
        if number not in self.memories:
            if len(self.memories) > 5000:
                self.memories = {key: one for key, one in self.memories.items() if not one.storage.expired()}
            self.memories[number] = Memory(StorageWeakRef(tensor.untyped_storage()))
        return self.memories[number]


def accesses(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """What an operation of torch has read, and what it has written: nothing, if it only views or makes room."""
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    if function in EMPTY:
        return [], []
    arguments = function._schema.arguments  # type: ignore[attr-defined]
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | dict(kwargs)
    for argument in arguments:
        tensors = [leaf for leaf in tree_leaves(given.get(argument.name)) if isinstance(leaf, Tensor)]
        written = argument.alias_info is not None and argument.alias_info.is_write
        (writes if written else reads).extend(tensors)
    known = {storage_id(tensor) for tensor in (*reads, *writes)}
    made = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and storage_id(leaf) not in known]
    if not writes and not made:
        return [], []
    return reads, [*writes, *made]
