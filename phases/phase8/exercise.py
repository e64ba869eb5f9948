"""Phase 8, CUDA graphs: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 20 points. Sizes: doubling, Buckets.holding
Task 2, 32 points. Every buffer, every time: StepBuffers.keep, DecodeGraphs.fill
Task 3, 10 points. What is recorded: decode
Task 4, 38 points. Replay, or not: DecodeGraphs.replay, Engine.forward, Engine.allocate, Engine.blocks_that_fit

Copy it (`minfer start 8`), write, then look what is right: `minfer check 8`, or
`pytest tests/phase8 --engine work/phase8.py`. Hints: `minfer hint 8 1`.
It builds on the reference of phase 7; to build on your own, import that instead.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minfer.core.attention import MASK_BYTES
from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.device import Device, Graph
from minfer.core.errors import DeviceError, OptionsError
from minfer.core.options import at_least, option
from minfer.phase7 import Engine as Phase7Engine
from minfer.phase7 import FusionOptions, PagedKVCache, PagedStep

# ==== phase8/buckets.py =============================================================================================
# Buckets: the sizes of step that a graph is recorded for, and the memory that recording them takes.


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
        raise NotImplementedError("P8 task 1: Buckets.holding")


def doubling(limit: int) -> list[int]:
    """1, 2, 4, … below `limit`, then `limit` itself; nothing for 0."""
    raise NotImplementedError("P8 task 1: doubling")


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


# ==== phase8/decode_graphs.py =======================================================================================
# DecodeGraphs: a recorded decode step for each bucket, over buffers that stay where they are.
#
# All are recorded when the engine is made: no request waits for one, their memory is known before any comes, and largest
# first, so that the smaller ones fit into what the first has taken. That is some tens of buckets, of three steps each.


PADDING = 0
"""Token and position of a row that only fills up a bucket."""


class StepBuffers:
    """The memory that every graph reads and writes. Each bucket uses the head of each buffer."""

    def __init__(self, rows: int, blocks: int, device: torch.device) -> None:
        self.input_ids, self.positions, self.slots = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self.tables = torch.zeros(blocks, dtype=torch.int64, device=device)  # of the largest bucket, row after row
        self.logits = torch.empty(0)  # (rows, vocab), made when the model has first said how wide and of what dtype

    def table(self, bucket: Bucket) -> Tensor:
        """The bucket's block tables, `(rows, width)`, with nothing between two rows."""
        return self.tables[: bucket.blocks].view(bucket)

    def keep(self, logits: Tensor) -> None:
        """Store logits `(rows, vocab)`. The first to come, in a warm-up, says what memory they need."""
        raise NotImplementedError("P8 task 2: StepBuffers.keep")


class DecodeGraphs:
    """The graphs of one pool, and the buffers between them and the engine.

    Invariant: rows of padding write to the scratch block and read nothing else; no row of a request reads it, since
    0 · NaN is NaN; and it is zero after each step.
    """

    def __init__(self, model: nn.Module, cache: PagedKVCache, device: Device, buckets: Buckets) -> None:
        self.cache = cache
        self.buffers = StepBuffers(buckets.most_rows, buckets.most_blocks, cache.pool.device)
        self.buffers.slots.fill_(cache.scratch * cache.block_size)  # recording runs the step: of padding only
        self.buffers.tables.fill_(cache.scratch)
        self.graphs: dict[Bucket, Graph] = {}
        before, first = device.reserved_memory(), None
        for bucket in buckets.largest_first:
            self.graphs[bucket] = capture(partial(decode, model, cache, self.buffers, bucket), bucket, device, first)
            first = first or self.graphs[bucket]
        self.nbytes = device.reserved_memory() - before

    def replay(self, bucket: Bucket, batch: ForwardBatch, step: PagedStep) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows, by a graph that has room for them; no later replay changes them."""
        raise NotImplementedError("P8 task 4: DecodeGraphs.replay")

    def fill(self, bucket: Bucket, batch: ForwardBatch, step: PagedStep) -> None:
        """Overwrite all that the bucket's graph reads: the step's rows, then padding, whatever was there before."""
        raise NotImplementedError("P8 task 2: DecodeGraphs.fill")


@torch.inference_mode()
def capture(work: partial[None], bucket: Bucket, device: Device, beside: Graph | None) -> Graph:
    """`work` as a graph. Raises `DeviceError` if it cannot be recorded."""
    try:
        return device.graph(work, beside)
    except RuntimeError as error:
        raise DeviceError(
            f"a decode step of {bucket.rows} rows and {bucket.width} blocks cannot be recorded as a graph: {error}; "
            "lower graph_batch, or load with graph_batch=0"
        ) from error


def decode(model: nn.Module, cache: PagedKVCache, buffers: StepBuffers, bucket: Bucket) -> None:
    """The step that is recorded: one token for each row of the buffers, its logits back into them."""
    raise NotImplementedError("P8 task 3: decode")


# ==== phase8/usage.py ===============================================================================================
# GraphUsage: how many steps were replayed, why others were not, and what padding cost.


@dataclass
class GraphUsage:
    """Counted since the graphs were recorded."""

    replays: int = 0
    eager: Counter[str] = field(default_factory=Counter)
    """Steps that were not replayed, by reason: `prefill` (with chunks of prompts), `rows`, `width` (no such bucket)."""
    rows: int = 0
    bucket_rows: int = 0
    blocks: int = 0
    bucket_blocks: int = 0

    def replayed(self, rows: int, width: int, bucket: Bucket) -> None:
        """Count a step of `rows` rows, whose longest table has `width` blocks."""
        self.replays += 1
        self.rows += rows
        self.bucket_rows += bucket.rows
        self.blocks += rows * width
        self.bucket_blocks += bucket.rows * bucket.width

    @property
    def padded_rows(self) -> float:
        """The share of computed rows that were padding."""
        return 1 - self.rows / self.bucket_rows if self.bucket_rows else 0.0

    @property
    def padded_blocks(self) -> float:
        """The share of gathered blocks that were there only because of buckets."""
        return 1 - self.blocks / self.bucket_blocks if self.bucket_blocks else 0.0

    def figures(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "replays": self.replays,
            "eager": dict(self.eager),
            "padded_rows": self.padded_rows,
            "padded_blocks": self.padded_blocks,
        }


# ==== phase8/engine.py ==============================================================================================
# Phase 8's change: `allocate` records decode steps as graphs, `forward` replays them.


@dataclass(frozen=True)
class GraphOptions(FusionOptions):
    """Phase 8's options."""

    graph_batch: int | None = option(None, "most requests in a step that is replayed as a graph; default: max_batch")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.graph_batch is not None:
            at_least(self, "graph_batch", 0)
            if self.graph_batch > self.max_batch:
                raise OptionsError(
                    f"graph_batch = {self.graph_batch} is above max_batch = {self.max_batch}: no step has so many rows"
                )


class Engine(Phase7Engine):
    """A step that only decodes is replayed; any other is computed as before."""

    Options = GraphOptions
    options: GraphOptions

    def allocate(self) -> None:
        """As before; then the graphs, which are of this pool and no other."""
        raise NotImplementedError("P8 task 4: Engine.allocate")

    def make_buckets(self) -> Buckets:
        """The sizes of step that are recorded: as wide as the context, or as the pool if that is smaller."""
        options = self.options
        rows = options.max_batch if options.graph_batch is None else options.graph_batch
        width = -(-self.context // options.block_size)
        room = self.device.free_memory() // SHARE
        most = room // gathered_bytes(self.config, options.block_size, self.dtype)
        return Buckets(rows, min(width, options.num_blocks or width), most)

    @property
    def capture_bytes(self) -> int:
        """About what the graphs take, beside the pool and what any step takes."""
        return self.buckets.most_blocks * gathered_bytes(self.config, self.options.block_size, self.dtype)

    def blocks_that_fit(self) -> int:
        """As before, but with room beside the pool for the graphs, and in it for the scratch block."""
        raise NotImplementedError("P8 task 4: Engine.blocks_that_fit")

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows."""
        raise NotImplementedError("P8 task 4: Engine.forward")

    def eager(self, batch: ForwardBatch, reason: str) -> Tensor:
        """A step that is not replayed, and why."""
        self.usage.eager[reason] += 1
        return super().forward(batch)

    def graph_usage(self) -> dict[str, Any]:
        """What is recorded, what was replayed and what padding cost, as plain JSON values; see `GraphUsage`."""
        assert self.graphs is not None
        with self.stepping:
            return {"graphs": len(self.graphs.graphs), "bytes": self.graphs.nbytes, **self.usage.figures()}
