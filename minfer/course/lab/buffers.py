"""CacheBuffers: the tensors in which an engine keeps keys and values, whatever its cache looks like.

They are found by reach and shape: every float tensor that can be reached from the engine or its sequences through
attributes, lists and dicts, and has a dimension for heads and one for channels, joined or not. The tiny models' sizes
are all different, so nothing else has such a shape.
"""

from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minfer.core.config import ModelConfig

POISON = 1e4
"""Finite, since 0 · NaN would also spoil an engine that masks it rightly; large, so that reading it shows."""


class CacheBuffers:
    """What `holders` (an engine, its sequences) keep of keys and values for a model of `config`."""

    def __init__(self, config: ModelConfig, *holders: Any) -> None:
        self.config = config
        self.tensors = _without_views([tensor for tensor in reachable(holders) if self._is_cache(tensor)])

    @property
    def nbytes(self) -> int:
        """Bytes of the memory behind them, shared memory counted once."""
        storages = {_storage(tensor): tensor.untyped_storage().nbytes() for tensor in self.tensors}
        return sum(storages.values())

    @torch.inference_mode()
    def poison(self) -> int:
        """Fill whatever was never written, which is exactly 0, with a large number; returns how many were filled."""
        filled = 0
        for tensor in self.tensors:
            unwritten = tensor == 0
            tensor[unwritten] = POISON
            filled += int(unwritten.sum())
        return filled

    def holds(self, values: np.ndarray) -> float:
        """The share of `values` that is found somewhere in the buffers, whatever their layout."""
        if not self.tensors:
            return 0.0
        known = np.sort(torch.cat([tensor.detach().reshape(-1).to(torch.float64) for tensor in self.tensors]).numpy())
        wanted = values.reshape(-1)
        after = np.searchsorted(known, wanted).clip(0, len(known) - 1)
        before = (after - 1).clip(0)
        nearest = np.minimum(np.abs(known[after] - wanted), np.abs(known[before] - wanted))
        return float((nearest < 1e-9).mean())

    def _is_cache(self, tensor: Tensor) -> bool:
        config, shape = self.config, set(tensor.shape)
        if not tensor.is_floating_point() or not tensor.numel():
            return False
        heads = {config.num_heads, config.num_kv_heads}
        joined = {count * config.head_dim for count in heads}
        return bool(shape & joined) or (config.head_dim in shape and bool(shape & heads))


def _without_views(tensors: list[Tensor]) -> list[Tensor]:
    """Where one tensor is all of a piece of memory, that one alone: views of it would be counted or marked twice."""
    whole = {_storage(tensor): tensor for tensor in tensors if tensor.nbytes == tensor.untyped_storage().nbytes()}
    return [tensor for tensor in tensors if whole.get(_storage(tensor), tensor) is tensor]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def reachable(roots: Any) -> Iterator[Tensor]:
    """Every tensor that can be reached from `roots`, the parameters of modules apart."""
    seen: set[int] = set()
    waiting = [roots]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        else:
            waiting += _parts(item)


def _parts(item: Any) -> list[Any]:
    if isinstance(item, type | ModuleType | Enum | str | bytes | np.ndarray):
        return []
    if isinstance(item, nn.Module):
        return [value for name, value in vars(item).items() if name != "_parameters"]
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    slots = [getattr(item, name, None) for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(item, "__dict__", {}).values(), *slots]
