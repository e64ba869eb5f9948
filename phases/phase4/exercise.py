"""Phase 4, Static batching: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 17 points. Who runs together: Engine.groups
Task 2, 22 points. A row for each: BatchKVCache.reserve, BatchKVCache.keep
Task 3, 16 points. Store and show: BatchKVCache.begin, BatchAttention.update
Task 4, 15 points. Padding is never seen: BatchKVCache._mask
Task 5, 30 points. One rectangle: Engine.prepare

Copy it (`minfer start 4`), write, then look what is right: `minfer check 4`, or
`pytest tests/phase4 --engine work/phase4.py`. Hints: `minfer hint 4 1`.
It builds on the reference of phase 3; to build on your own, import that instead.
"""

import weakref
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from minfer.core.attention import Attention, LayerAttention, Visible, causal_mask
from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.options import at_least, option
from minfer.core.sequence import FinishReason, Sequence
from minfer.phase3 import Engine as Phase3Engine
from minfer.phase3 import EngineOptions, KVUsage

# ==== phase4/batch_kv_cache.py ======================================================================================
# BatchKVCache: keys and values of a padded batch, one row per sequence, one pair of tensors per layer.


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
        raise NotImplementedError("P4 task 2: BatchKVCache.reserve")

    def keep(self, owners: list[Sequence]) -> None:
        """Let the rows of all but `owners` go; the rows that stay move up."""
        raise NotImplementedError("P4 task 2: BatchKVCache.keep")

    def begin(self, positions: Tensor, width: int) -> list[Attention]:
        """Start a step that brings tokens at `positions` `(B, T)`; no row holds more than `width` tokens after it.

        The masks of the step are made here, once for all layers of one window.
        """
        raise NotImplementedError("P4 task 3: BatchKVCache.begin")

    def _mask(self, positions: Tensor, columns: Tensor, window: int | None) -> Tensor | None:
        """`(B, 1, T, S)`; None in a prefill: row t is position t, and padding on the right is in nobody's past."""
        raise NotImplementedError("P4 task 4: BatchKVCache._mask")


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
        raise NotImplementedError("P4 task 3: BatchAttention.update")


# ==== phase4/engine.py ==============================================================================================
# Phase 4's change: `groups` says who runs together, `prepare` pads a group to one rectangle.


@dataclass(frozen=True)
class BatchOptions(EngineOptions):
    """Phase 4's options."""

    max_batch: int = option(16, "most requests in one forward")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "max_batch", 1)


class Engine(Phase3Engine):
    """Groups of at most `max_batch` requests, each group run to its last token before the next begins."""

    Options = BatchOptions
    options: BatchOptions

    Cache = BatchKVCache

    def groups(self, sequences: list[Sequence]) -> list[list[Sequence]]:
        """One batch after another, in the order asked; each runs to its last token before the next begins."""
        raise NotImplementedError("P4 task 1: Engine.groups")

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """What the cache does not hold of each sequence, padded on the right to one width."""
        raise NotImplementedError("P4 task 5: Engine.prepare")
