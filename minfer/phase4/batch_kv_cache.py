"""BatchKVCache: keys and values of a padded batch, one row per sequence, one pair of tensors per layer."""

import weakref
from math import prod

import torch
from torch import Tensor

from minfer.core.attention import Attention, LayerAttention, Visible, causal_mask
from minfer.core.config import ModelConfig
from minfer.core.sequence import FinishReason, Sequence
from minfer.phase3 import KVUsage


class BatchKVCache:
    """A row for each sequence of the batch; column p of a row is position p of its sequence.

    Invariant: the rows of the sequences in `owners` come first and in that order. What a row holds behind its own last
    position is padding: never visible, and overwritten as the row grows.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.owners: list[Sequence] = []
        self.layers = [BatchAttention(weakref.proxy(self), window) for window in config.windows]
        self.rows = self.positions = torch.empty(0, dtype=torch.int64)
        self.width = 0
        self.masks: dict[int | None, Tensor | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(storage.nbytes for layer in self.layers for storage in layer.storage)

    def usage(self, owners: list[Sequence]) -> KVUsage:
        """How much of all rows of the group together `owners` fill: padding holds nothing."""
        return KVUsage.of(owners, self.layers[0].keys.shape[:2].numel())

    def reserve(self, sequences: list[Sequence]) -> None:
        """Be empty, with a row for each sequence, as long as the longest of them can become.

        The storage only grows, so addresses stay when there was enough room. It is emptied after a step that failed:
        what that left may be NaN, and 0 · NaN is NaN under any mask.
        """
        if any(owner.finish_reason is FinishReason.ABORT for owner in self.owners):
            for layer in self.layers:
                layer.storage = [torch.empty(0), torch.empty(0)]
        self.owners = list(sequences)
        rows, capacity = len(sequences), max(sequence.max_length for sequence in sequences)
        shape = (rows, capacity, self.config.num_kv_heads, self.config.head_dim)
        for layer in self.layers:
            layer.reserve(shape, self.dtype, self.device)

    def keep(self, owners: list[Sequence]) -> None:
        """Let the rows of all but `owners` go; the rows that stay move up."""
        if owners == self.owners:
            return
        rows = torch.tensor([self.owners.index(owner) for owner in owners], device=self.device)
        for layer in self.layers:
            layer.keys[: len(owners), : self.width] = layer.keys[rows, : self.width]
            layer.values[: len(owners), : self.width] = layer.values[rows, : self.width]
        self.owners = list(owners)

    def begin(self, positions: Tensor, width: int) -> list[Attention]:
        """Start a step that brings tokens at `positions` `(B, T)`; no row holds more than `width` tokens after it.

        The masks of the step are made here, once for all layers of one window.
        """
        self.width, self.positions = width, positions
        self.rows = torch.arange(len(positions), device=positions.device)[:, None]
        columns = torch.arange(width, device=positions.device)
        self.masks = {w: self._mask(positions, columns, w) for w in set(self.config.windows)}
        return list(self.layers)

    def _mask(self, positions: Tensor, columns: Tensor, window: int | None) -> Tensor | None:
        """`(B, 1, T, S)`; None in a prefill: row t is position t, and padding on the right is in nobody's past."""
        if positions.shape[1] == len(columns) > 1 and (window is None or len(columns) <= window):
            return None
        return causal_mask(positions, columns, window).unsqueeze(1)


class BatchAttention(LayerAttention):
    """One layer of a `BatchKVCache`."""

    keys: Tensor  # (rows, capacity, n_kv_heads, head_dim), a view of its storage
    values: Tensor

    def __init__(self, cache: BatchKVCache, window: int | None) -> None:
        self.cache, self.window = cache, window
        self.storage = [torch.empty(0), torch.empty(0)]
        self.keys = self.values = torch.empty(0)

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        """Shape the storage as `(rows, capacity, n_kv_heads, head_dim)`, growing it if it is too small."""
        size = prod(shape)
        if size > self.storage[0].numel():
            self.storage.clear()  # the old pair goes before the new one comes
            self.keys = self.values = torch.empty(0)
            self.storage = [torch.zeros(size, dtype=dtype, device=device) for _ in range(2)]
        self.keys, self.values = (storage[:size].view(shape) for storage in self.storage)

    def update(self, k: Tensor, v: Tensor) -> Visible:
        """Store k and v `(B, T, n_kv_heads, head_dim)`, each token in its row's column; show the batch's width."""
        cache = self.cache
        self.keys[cache.rows, cache.positions] = k
        self.values[cache.rows, cache.positions] = v
        rows = len(cache.rows)
        keys, values, mask = self.keys[:rows], self.values[:rows], cache.masks[self.window]
        return Visible(keys[:, : cache.width], values[:, : cache.width], mask, is_causal=mask is None)
