"""Operations of torch that are done later, as a card does them: on addresses, with whatever lies there then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


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


def storage_id(tensor: Tensor) -> int:
    """Of the memory behind a tensor, as long as it is alive."""
    return tensor.untyped_storage()._cdata


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
