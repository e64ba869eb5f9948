"""Buckets: the sizes of step that a graph is recorded for, and the memory that recording them takes."""

from typing import NamedTuple

import torch

from minfer.core.config import ModelConfig

LOPSIDED = 4
"""Two sizes are rounded up, each to less than its double: so requests of like length, which together fill the pool at
most, never need a bucket of more than four times the pool. A few long ones among many short ones may."""


class Bucket(NamedTuple):
    """The size of a decode step."""

    rows: int
    width: int  # blocks of the longest row's table


class Buckets:
    """Powers of two of rows and of width, and the largest of each; none of more than `LOPSIDED` times the pool."""

    def __init__(self, rows: int, width: int, num_blocks: int) -> None:
        self.rows, self.widths = doubling(rows), doubling(min(width, num_blocks))
        every = [Bucket(rows, width) for rows in self.rows for width in self.widths]
        kept = [bucket for bucket in every if bucket.rows * bucket.width <= LOPSIDED * num_blocks]
        self.largest_first = sorted(kept, key=lambda bucket: bucket.rows * bucket.width, reverse=True)

    def holding(self, rows: int, width: int) -> Bucket | None:
        """The smallest bucket that such a step fits; None if there is none."""
        fitting = Bucket(_at_least(rows, self.rows), _at_least(width, self.widths))
        return fitting if fitting in self.largest_first else None

    def capture_bytes(self, config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
        """An estimate of what the graphs take: one memory serves all, so it is what the largest bucket needs.

        Keys and values of one layer as they are gathered, as one head for each query head (where the kernel knows no
        groups) in float32 at least, scores and weights, and the mask; the logits. What a layer makes of one token per
        row is little beside that.
        """
        if not self.largest_first:
            return 0
        wide = max(dtype.itemsize, 4)
        gathered = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
        expanded = config.num_heads * (2 * config.head_dim + 2) * wide
        tokens = max(bucket.rows * bucket.width for bucket in self.largest_first) * block_size
        return tokens * (gathered + expanded + 11) + 2 * self.rows[-1] * config.vocab_size * wide


def doubling(limit: int) -> list[int]:
    """1, 2, 4, … below `limit`, then `limit` itself; nothing for 0."""
    powers = [1 << i for i in range(limit.bit_length()) if 1 << i < limit]
    return [*powers, limit] if limit else []


def _at_least(size: int, sizes: list[int]) -> int:
    return next((one for one in sizes if one >= size), 0)
