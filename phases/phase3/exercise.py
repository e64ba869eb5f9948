"""Phase 3, KV cache: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 25 points. Room for one conversation: KVCache.reserve, Engine.admit, Engine.release
Task 2, 25 points. Store and show: CachedAttention.update
Task 3, 25 points. Who sees what: KVCache.begin, KVCache.first_visible, KVCache.is_causal
Task 4, 25 points. Feed only what is new: Engine.prepare

Copy it (`minfer start 3`), write, then look what is right: `minfer check 3`, or
`pytest tests/phase3 --engine work/phase3.py`. Hints: `minfer hint 3 1`.
It builds on the reference of phase 2; to build on your own, import that instead.
"""

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minfer.core.attention import Attention, LayerAttention, Visible, causal_mask
from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.errors import RequestError
from minfer.core.sequence import Sequence
from minfer.phase2 import Engine as Phase2Engine

# ==== phase3/kv_cache.py ============================================================================================
# KVCache: keys and values of one sequence, contiguous, one pair of tensors per layer.


class KVUsage(NamedTuple):
    """What a cache's memory is used for, in slots: one slot is one token's keys and values in all layers."""

    held: int  # slots with a token that its sequence needs
    allocated: int  # slots that nobody else can have

    @classmethod
    def of(cls, owners: list[Sequence], allocated: int) -> "KVUsage":
        """Each owner's tokens have slots of their own; who is finished holds nothing."""
        return cls(sum(sequence.num_cached for sequence in owners if not sequence.finished), allocated)

    @property
    def unused(self) -> float:
        """The share of what is allocated that holds nothing."""
        return 1 - self.held / self.allocated if self.allocated else 0.0


class KVCache:
    """Room for `capacity` tokens. Invariant: slots 0 … end-1 hold the sequence's first `end` tokens after a step.

    Memory: 2 · layers · capacity · kv_heads · head_dim · bytes. Heads are stored as the model makes them, unexpanded.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.capacity = 0
        self.layers = [CachedAttention(weakref.proxy(self), window) for window in config.windows]
        self.start = self.end = 0
        self.masks: dict[int | None, Tensor | None] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)

    def usage(self, owners: list[Sequence]) -> KVUsage:
        """How much of it `owners` fill: what is reserved for answers to come holds nothing."""
        return KVUsage.of(owners, self.capacity)

    def reserve(self, sequences: list[Sequence]) -> None:
        """Be empty, with room for all tokens of the one sequence; addresses stay when there was enough room."""
        raise NotImplementedError("P3 task 1: KVCache.reserve")

    def begin(self, positions: Tensor) -> list[Attention]:
        """Start a step that brings the tokens at `positions` `(T,)`, which follow those held; one attention per layer.

        The masks of the step are made here, once for all layers of one window.
        """
        raise NotImplementedError("P3 task 3: KVCache.begin")

    def first_visible(self, window: int | None) -> int:
        """The first slot that any query of the step can see."""
        raise NotImplementedError("P3 task 3: KVCache.first_visible")

    def _mask(self, positions: Tensor, held: Tensor, window: int | None) -> Tensor | None:
        if len(positions) == 1 or self.is_causal(window):  # one query sees all that is read
            return None
        return causal_mask(positions, held[self.first_visible(window) :], window)

    def is_causal(self, window: int | None) -> bool:
        """Whether the step's queries are all that is held, so that torch's own causal mask is the right one."""
        raise NotImplementedError("P3 task 3: KVCache.is_causal")


class CachedAttention(LayerAttention):
    """One layer of a `KVCache`: stores what comes in, shows all that is held within the window."""

    keys: Tensor  # (capacity, n_kv_heads, head_dim)
    values: Tensor

    def __init__(self, cache: KVCache, window: int | None) -> None:
        self.cache, self.window = cache, window
        self.keys = self.values = torch.empty(0)

    def update(self, k: Tensor, v: Tensor) -> Visible:
        """Store k and v `(T, n_kv_heads, head_dim)` behind what is held; the tail of the buffer stays unseen."""
        raise NotImplementedError("P3 task 2: CachedAttention.update")


# ==== phase3/engine.py ==============================================================================================
# Phase 3's change: `prepare` feeds only the tokens that the cache does not hold yet.


class Engine(Phase2Engine):
    """One request at a time, each token computed once."""

    Cache: Any = KVCache  # made of (config, dtype, device); has `reserve`, `begin`, `usage` and `nbytes`

    def allocate(self) -> None:
        """An empty cache; it grows to the longest request seen, and is used again by the next."""
        self.cache = self.Cache(self.config, self.dtype, self.device.torch_device)
        self.owners: list[Sequence] = []

    def admit(self, sequences: list[Sequence]) -> None:
        """Give the cache to the sequences, empty and with room for their last tokens."""
        raise NotImplementedError("P3 task 1: Engine.admit")

    def refuse_too_large(self, sequences: list[Sequence]) -> None:
        """Raise `RequestError` if memory cannot take a row for each sequence, as long as the longest can become."""
        rows, longest = len(sequences), max(sequence.max_length for sequence in sequences)
        needed = rows * longest * self.config.kv_numbers_per_token * self.dtype.itemsize
        free = self.device.free_memory() + getattr(self.cache, "nbytes", 0)
        if needed > free:
            raise RequestError(
                f"a KV cache of {rows} × {longest} tokens needs {needed:,} bytes, {free:,} are free: "
                "lower max_tokens, the context or the batch"
            )

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """All of the prompt at first, then one token: whatever the cache does not hold."""
        raise NotImplementedError("P3 task 4: Engine.prepare")

    def release(self, sequence: Sequence) -> None:
        """The cache is free for the next request once all its owners have let go."""
        raise NotImplementedError("P3 task 1: Engine.release")

    def kv_usage(self) -> KVUsage:
        """How much of the cache holds something now."""
        return self.cache.usage(self.owners)
