"""Counts: what an engine costs, in reads of the device and bytes held, which are the same on every machine."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS: dict[Callable[..., Any], str] = {
    getattr(Tensor, name): name
    for name in (
        *("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__"),
        *("__array__", "__contains__", "__repr__", "__format__", "nonzero", "equal", "allclose", "masked_select"),
    )
} | {getattr(torch, name): name for name in ("nonzero", "equal", "allclose", "masked_select", "is_nonzero")}
"""What makes the host wait for the device: the values, or how many there are, must be known."""


class OnHostRead(TorchFunctionMode):
    """Calls `read`, while entered, before each call that reads a tensor's values on the host."""

    def read(self, name: str, values: Any) -> None:
        """`name`: how they are read, as `READS` has it; `values`: what is read, a tensor in most cases."""
        raise NotImplementedError

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in READS:
            self.read(READS[func], args[0] if args else None)
        return func(*args, **(kwargs or {}))


class HostReads(OnHostRead):
    """Counts, while entered, the calls that read a tensor's values on the host; each of them makes a GPU wait.

    They are counted as they are called, so a CPU shows what a GPU would do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(self.calls.values())

    def read(self, name: str, values: Any) -> None:
        """Count it."""
        self.calls[name] += 1


class LiveBytes(TorchDispatchMode):
    """Follows, while entered, how many bytes of tensors are alive; `peak` is the most there were.

    Whatever an operation takes in or gives out counts, once per memory, so a file read as a whole counts too. What was
    alive before is not counted unless it is used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    @property
    def now(self) -> int:
        """Bytes alive at the moment."""
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        return sum(nbytes for _, nbytes in self.alive.values())

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                storage = leaf.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.now)
        return out
