"""KVCache: keys and values of one sequence, contiguous, one pair of tensors per layer."""

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from minfer.core.attention import Attention, LayerAttention, Visible, causal_mask
from minfer.core.config import ModelConfig
from minfer.core.sequence import Sequence


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
        (sequence,) = sequences
        capacity = sequence.max_length
        self.start = self.end = 0
        if capacity <= self.capacity:
            return
        self.capacity = capacity
        shape = (capacity, self.config.num_kv_heads, self.config.head_dim)
        for layer in self.layers:
            layer.keys = layer.values = torch.empty(0)  # the old pair goes before the new one comes
            layer.keys = torch.zeros(shape, dtype=self.dtype, device=self.device)
            layer.values = torch.zeros(shape, dtype=self.dtype, device=self.device)

    def begin(self, positions: Tensor) -> list[Attention]:
        """Start a step that brings the tokens at `positions` `(T,)`, which follow those held; one attention per layer.

        The masks of the step are made here, once for all layers of one window.
        """
        self.start, self.end = self.end, self.end + len(positions)
        assert self.end <= self.capacity, f"{self.end} tokens in a cache for {self.capacity}"
        held = torch.arange(self.end, device=positions.device)
        self.masks = {window: self._mask(positions, held, window) for window in set(self.config.windows)}
        return list(self.layers)

    def first_visible(self, window: int | None) -> int:
        """The first slot that any query of the step can see."""
        return 0 if window is None else max(0, self.start - window + 1)

    def _mask(self, positions: Tensor, held: Tensor, window: int | None) -> Tensor | None:
        if len(positions) == 1 or self.is_causal(window):  # one query sees all that is read
            return None
        return causal_mask(positions, held[self.first_visible(window) :], window)

    def is_causal(self, window: int | None) -> bool:
        """Whether the step's queries are all that is held, so that torch's own causal mask is the right one."""
        return self.start == 0 and self.end > 1 and (window is None or self.end <= window)


class CachedAttention(LayerAttention):
    """One layer of a `KVCache`: stores what comes in, shows all that is held within the window."""

    keys: Tensor  # (capacity, n_kv_heads, head_dim)
    values: Tensor

    def __init__(self, cache: KVCache, window: int | None) -> None:
        self.cache, self.window = cache, window
        self.keys = self.values = torch.empty(0)

    def update(self, k: Tensor, v: Tensor) -> Visible:
        """Store k and v `(T, n_kv_heads, head_dim)` behind what is held; the tail of the buffer stays unseen."""
        cache = self.cache
        self.keys[cache.start : cache.end] = k
        self.values[cache.start : cache.end] = v
        seen = slice(cache.first_visible(self.window), cache.end)
        return Visible(self.keys[seen], self.values[seen], cache.masks[self.window], cache.is_causal(self.window))
