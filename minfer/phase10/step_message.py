"""StepMessage: what rank 0 tells the others of a step: numbers only, of which each makes the same batch for its shard.

    header    int64, of one length for all steps, on the host: the step's number, its kind, and the sizes below
    payload   int64, where the model lives: input_ids, positions, rows, slots, block tables, end to end

The payload is taken from the tensors of the step as they are, so tokens that are known only to the device stay there.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from minfer.core.attention import Attention
from minfer.core.batch import ForwardBatch
from minfer.phase9 import PagedStep

FACTS = 7
"""Numbers of a header before its segments, of two numbers each."""

WITHOUT_TABLE = -1


class Kind(IntEnum):
    """What a step is."""

    END = 0  # there will be none
    WHOLE = 1  # without a cache: a prompt is scored
    PAGED = 2


@dataclass
class StepMessage:
    """One step's numbers."""

    kind: Kind
    tokens: int
    rows: int
    decodes: int
    width: int  # of the decodes' block tables
    segments: list[tuple[int, int]]  # each chunk's end in the batch, and the blocks of its table or WITHOUT_TABLE
    payload: Tensor

    @classmethod
    def end(cls) -> "StepMessage":
        """The last message."""
        return cls(Kind.END, 0, 0, 0, 0, [], torch.empty(0, dtype=torch.int64))

    @classmethod
    def of(cls, batch: ForwardBatch, cache: Any) -> "StepMessage":
        """What the others need to know of `batch`, which `cache.begin` has just been called for, if it is paged."""
        parts = [batch.input_ids, batch.positions, batch.rows]
        sizes = (len(batch.input_ids), len(batch.rows))
        if list(batch.attention) != cache.layers:
            return cls(Kind.WHOLE, *sizes, 0, 0, [], torch.cat(parts))
        step = cache.step
        tables = [segment.table for segment in step.segments]
        segments = [
            (segment.rows.stop, WITHOUT_TABLE if table is None else len(table))
            for segment, table in zip(step.segments, tables, strict=True)
        ]
        parts += [step.slots, step.tables.flatten(), *(table for table in tables if table is not None)]
        decodes = len(step.tables)
        width = step.tables.shape[1] if decodes else 0
        return cls(Kind.PAGED, *sizes, decodes, width, segments, torch.cat(parts))

    def header(self, number: int, length: int) -> Tensor:
        """int64 `(length,)`."""
        facts = [number, self.kind, self.tokens, self.rows, self.decodes, self.width, len(self.segments)]
        flat = [*facts, *(n for segment in self.segments for n in segment)]
        return torch.tensor(flat + [0] * (length - len(flat)))

    @classmethod
    def announced(cls, header: list[int], device: torch.device) -> "StepMessage":
        """The message of a header; its payload is still to come."""
        _, kind, tokens, rows, decodes, width, count = header[:FACTS]
        flat = header[FACTS : FACTS + 2 * count]
        segments = list(zip(flat[::2], flat[1::2], strict=True))
        paged = tokens + decodes * width + sum(max(blocks, 0) for _, blocks in segments)
        size = 2 * tokens + rows + (paged if kind == Kind.PAGED else 0)
        payload = torch.empty(size, dtype=torch.int64, device=device)
        return cls(Kind(kind), tokens, rows, decodes, width, segments, payload)

    def batch(self, attention: Items[Attention], cache: Any) -> ForwardBatch:
        """The step's batch for this rank's shard: `attention` for a prompt that is scored, else that of `cache`."""
        sizes = [self.tokens, self.tokens, self.rows]
        input_ids, positions, rows, rest = self.payload.split([*sizes, len(self.payload) - sum(sizes)])
        if self.kind is Kind.PAGED:
            attention = self._begin(cache, positions, rest)
        return ForwardBatch(input_ids, positions, attention, rows, [])

    def _begin(self, cache: Any, positions: Tensor, rest: Tensor) -> Items[Attention]:
        blocks = [max(count, 0) for _, count in self.segments]
        slots, flat, *own_tables = rest.split([self.tokens, self.decodes * self.width, *blocks])
        start, segments = self.decodes, []
        for (stop, count), table in zip(self.segments, own_tables, strict=True):
            own = None if count == WITHOUT_TABLE else table
            segments.append(cache.segment(slice(start, stop), positions[start:stop], own))
            start = stop
        tables = flat.view(self.decodes, self.width)
        masks = cache.decode_masks(positions[: self.decodes], self.width * cache.block_size) if self.decodes else {}
        cache.step = PagedStep(slots, tables, masks, segments)
        empty_begun_blocks(cache, slots)
        return list(cache.layers)


def empty_begun_blocks(cache: Any, slots: Tensor) -> None:
    """Zero the blocks whose first slot a step writes: rank 0 has just handed them out, and emptied its own."""
    blocks = torch.where(slots % cache.block_size == 0, slots // cache.block_size, cache.scratch)
    cache.pool.index_fill_(2, blocks, 0)


def header_length(max_batch: int) -> int:
    """Numbers in every header of an engine that runs up to `max_batch` requests in a step."""
    return FACTS + 2 * max_batch
