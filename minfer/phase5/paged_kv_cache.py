"""PagedKVCache: keys and values of all requests in one pool of blocks per layer, found through block tables.

Slot s of the pool is token s % block_size of block s // block_size. Writes go by `slots`, reads by `tables`.
"""

import weakref
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from minfer.core.attention import Attention, Visible, attend, causal_mask
from minfer.core.config import ModelConfig
from minfer.core.sequence import Sequence
from minfer.core.upload import upload
from minfer.phase4 import KVUsage


@dataclass(frozen=True)
class Span:
    """The tokens of one sequence that a step computes: `count` of them, from position `start` on."""

    start: int
    count: int
    table: list[int]  # block ids of the sequence's first start + count tokens

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.start + self.count

    def slots(self, block_size: int) -> list[int]:
        """Where the pool takes the tokens."""
        return [self.table[p // block_size] * block_size + p % block_size for p in range(self.start, self.end)]


@dataclass
class Segment:
    """A prompt, or a chunk of one, in the flat batch."""

    rows: slice  # of the flat batch
    table: Tensor | None  # int64 (blocks,): what is visible; None: only what the segment itself brings
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)  # by window, (T, S)


@dataclass
class PagedStep:
    """What one step needs of the pool; made once, read by every layer. The decode rows come first."""

    slots: Tensor  # int64 (N,): where each token's key and value are stored
    tables: Tensor  # int64 (decodes, blocks): block ids, filled up with the scratch block
    masks: dict[int | None, Tensor]  # by window, bool (decodes, 1, 1, blocks * block_size)
    segments: list[Segment]

    @cached_property
    def context(self) -> Tensor:
        """int64 (decodes, blocks * block_size): the slots of each table's blocks, end to end."""
        decodes, blocks = self.tables.shape
        size = next(iter(self.masks.values())).shape[-1] // blocks
        within = torch.arange(size, device=self.tables.device)
        return (self.tables.unsqueeze(-1) * size + within).view(decodes, -1)


class PagedKVCache:
    """A pool of `num_blocks` blocks, and one scratch block behind them that takes what must go nowhere.

    Invariant: a block is zero when it is handed out, because 0 · NaN is NaN: what a mask hides must still be finite.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.num_blocks, self.block_size = config, num_blocks, block_size
        self.scratch = num_blocks
        shape = (2, config.num_layers, num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
        self.pool = torch.zeros(shape, dtype=dtype, device=device)
        keys, values = self.pool
        cache = weakref.proxy(self)  # no cycle: the pool is freed with the engine, not when a collector runs
        self.layers = [PagedAttention(cache, keys[i], values[i], window) for i, window in enumerate(config.windows)]
        self.tables: dict[int, list[int]] = {}  # of each running request its blocks: the scheduler's own
        self.step: PagedStep

    @staticmethod
    def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers."""
        return block_size * config.kv_numbers_per_token * dtype.itemsize

    def usage(self, owners: list[Sequence]) -> KVUsage:
        """How much of the blocks that `owners` hold is filled; shared blocks count once.

        Paging wastes only the empty slots of each request's last block. May be called while another thread steps.
        """
        filled: dict[int, int] = {}
        for sequence in list(owners):
            for index, block in enumerate(list(self.tables.get(sequence.id, ()))):
                filled[block] = max(0, min(self.block_size, sequence.num_cached - index * self.block_size))
        return KVUsage(sum(filled.values()), len(filled) * self.block_size)

    def zero(self, blocks: list[int]) -> None:
        """Empty these blocks, which are about to be filled anew: what a failed step left there may be NaN."""
        if blocks:
            self.pool.index_fill_(2, upload(blocks, self.pool.device), 0)

    def begin(self, spans: list[Span], positions: Tensor, slots: Tensor) -> list[Attention]:
        """Start a step that brings `spans`, those of one token first; `positions`, `slots` int64 `(N,)` of all tokens.

        Tables and masks of the step are made here, once for all layers. Returns one attention per layer.
        """
        decodes = [span for span in spans if span.count == 1]
        assert all(span.count > 1 for span in spans[len(decodes) :]), "spans of one token come first"
        width = max((len(span.table) for span in decodes), default=0)
        tables = [span.table + [self.scratch] * (width - len(span.table)) for span in decodes]
        segments: list[Segment] = []
        first = len(decodes)
        for span in spans[len(decodes) :]:
            rows = slice(first, first + span.count)
            table = upload(span.table, slots.device) if span.start else None
            segments.append(self.segment(rows, positions[rows], table))
            first = rows.stop
        masks = self.decode_masks(positions[: len(decodes)], width * self.block_size) if decodes else {}
        self.step = PagedStep(slots, upload(tables, slots.device), masks, segments)
        return list(self.layers)

    def decode_masks(self, positions: Tensor, width: int) -> dict[int | None, Tensor]:
        """By window, which of `width` gathered slots each decode row at `positions` `(B,)` sees: `(B, 1, 1, width)`."""
        slots = torch.arange(width, device=positions.device)
        return {w: causal_mask(positions[:, None], slots, w).unsqueeze(1) for w in set(self.config.windows)}

    def segment(self, rows: slice, positions: Tensor, table: Tensor | None) -> Segment:
        """A chunk at `positions` `(T,)`, whose sequence's blocks are `table`; None if it starts its sequence."""
        held = positions if table is None else torch.arange(len(table) * self.block_size, device=positions.device)
        masks = {
            window: None
            if table is None and (window is None or len(positions) <= window)
            else causal_mask(positions, held, window)
            for window in set(self.config.windows)
        }
        return Segment(rows, table, masks)


class PagedAttention:
    """One layer of a `PagedKVCache`."""

    def __init__(self, cache: PagedKVCache, keys: Tensor, values: Tensor, window: int | None) -> None:
        self.cache, self.window = cache, window
        self.keys, self.values = keys, values  # (num_blocks + 1, block_size, n_kv_heads, head_dim)
        self.slots = keys.flatten(0, 1).flatten(1), values.flatten(0, 1).flatten(1)  # (slots, n_kv_heads * head_dim)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the step's keys and values, then attend: first the decode rows together, then each segment.

        q `(N, n_heads, head_dim)`, k and v `(N, n_kv_heads, head_dim)`. All is stored before anything is read, so a
        request may share a block that another fills in this very step.
        """
        step = self.cache.step
        self.keys.flatten(0, 1).index_copy_(0, step.slots, k)
        self.values.flatten(0, 1).index_copy_(0, step.slots, v)
        decodes = len(step.tables)
        parts = [self.decode(q[:decodes], step)] if decodes else []
        parts += [self.prefill(q[s.rows], k[s.rows], v[s.rows], s) for s in step.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def decode_inputs(self) -> list[Tensor]:
        """A decode step's tensors, for a later phase that stores and attends by itself instead of calling this layer.

        Keys and values of the pool `(slots, n_kv_heads * head_dim)`; the slots `(B,)` to write; the slots to read and
        their mask, both `(B, blocks * block_size)`.
        """
        step = self.cache.step
        return [*self.slots, step.slots, step.context, step.masks[self.window].flatten(1)]

    def decode(self, q: Tensor, step: PagedStep) -> Tensor:
        """One query per request: q `(B, n_heads, head_dim)` over the blocks of its table, gathered."""
        keys, values = self.gather(step.tables)
        return attend(q.unsqueeze(1), Visible(keys, values, step.masks[self.window])).squeeze(1)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
        """A segment's queries `(T, n_heads, head_dim)` over its own keys, or over its blocks if some came earlier."""
        mask = segment.masks[self.window]
        if segment.table is None:
            return attend(q, Visible(k, v, mask, is_causal=mask is None))
        return attend(q, Visible(*self.gather(segment.table), mask))

    def gather(self, tables: Tensor) -> tuple[Tensor, Tensor]:
        """The blocks of `tables` `(*, blocks)` end to end: keys, values `(*, blocks * block_size, n_kv_heads, D)`."""
        lead = (*tables.shape[:-1], -1, *self.keys.shape[2:])
        flat = tables.flatten()
        return self.keys.index_select(0, flat).view(lead), self.values.index_select(0, flat).view(lead)
