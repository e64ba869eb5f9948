"""Buckets: the sizes of step that a graph is recorded for, and the memory that recording them takes."""

from typing import NamedTuple

import torch

from minfer.core.attention import MASK_BYTES
from minfer.core.config import ModelConfig

SHARE = 8
"""Graphs may take an eighth of the free memory. A step that gathers more is no longer short beside its launches, which
is all that a graph saves."""


class Bucket(NamedTuple):
    """The size of a decode step."""

    rows: int
    width: int  # blocks of the longest row's table

    @property
    def blocks(self) -> int:
        """Blocks that the step gathers."""
        return self.rows * self.width


class Buckets:
    """Powers of two of rows and of width, up to `rows` and `width` themselves; none of more than `most_blocks`."""

    def __init__(self, rows: int, width: int, most_blocks: int) -> None:
        self.rows, self.widths = doubling(rows), doubling(width)
        every = [Bucket(rows, width) for rows in self.rows for width in self.widths]
        kept = [bucket for bucket in every if bucket.blocks <= most_blocks]
        self.largest_first = sorted(kept, key=lambda bucket: bucket.blocks, reverse=True)
        self.most_rows = max((bucket.rows for bucket in kept), default=0)
        self.most_blocks = max((bucket.blocks for bucket in kept), default=0)

    def holding(self, rows: int, width: int) -> Bucket | None:
        """The smallest bucket that such a step fits; None if there is none."""
        fitting = Bucket(_at_least(rows, self.rows), _at_least(width, self.widths))
        return fitting if fitting in self.largest_first else None


def doubling(limit: int) -> list[int]:
    """1, 2, 4, … below `limit`, then `limit` itself; nothing for 0."""
    powers = [1 << i for i in range(limit.bit_length()) if 1 << i < limit]
    return [*powers, limit] if limit else []


def _at_least(size: int, sizes: list[int]) -> int:
    return next((one for one in sizes if one >= size), 0)


def gathered_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """What a step needs for each block that it gathers; its graphs, which share one memory, need that of the largest.

    Keys and values of one layer; the same once for each query head in float32 at least, with scores and weights, as
    the kernel that knows no groups makes them; the mask. What is made of one token per row is little beside that.
    """
    kept = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
    expanded = config.num_heads * (2 * config.head_dim + 2) * max(dtype.itemsize, 4)
    return block_size * (kept + expanded + MASK_BYTES)
