"""DecodeGraphs: a recorded decode step for each bucket, over buffers that stay where they are.

All are recorded when the engine is made: no request waits for one, their memory is known before any comes, and largest
first, so that the smaller ones fit into what the first has taken. That is some tens of buckets, of three steps each.
"""

from functools import partial

import torch
from torch import Tensor, nn

from minfer.core.batch import ForwardBatch
from minfer.core.device import Device, Graph
from minfer.core.errors import DeviceError
from minfer.phase7 import PagedKVCache, PagedStep
from minfer.phase8.buckets import Bucket, Buckets

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
        if not self.logits.numel():
            self.logits = logits.new_empty(len(self.input_ids), logits.shape[1])
        self.logits[: len(logits)].copy_(logits)


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
        self.fill(bucket, batch, step)
        self.graphs[bucket].replay()
        return self.buffers.logits.index_select(0, batch.rows)

    def fill(self, bucket: Bucket, batch: ForwardBatch, step: PagedStep) -> None:
        """Overwrite all that the bucket's graph reads: the step's rows, then padding, whatever was there before."""
        buffers, scratch = self.buffers, self.cache.scratch
        rows, width = step.tables.shape
        for buffer, values, padding in (
            (buffers.input_ids, batch.input_ids, PADDING),
            (buffers.positions, batch.positions, PADDING),
            (buffers.slots, step.slots, scratch * self.cache.block_size),
        ):
            buffer[:rows].copy_(values)
            buffer[rows : bucket.rows].fill_(padding)
        table, own = buffers.table(bucket), step.tables[:, :1]
        table[rows:].fill_(scratch)
        table[:rows].copy_(own.expand(rows, bucket.width))  # behind a row's last block, which a mask hides
        table[:rows, :width].copy_(torch.where(step.tables == scratch, own, step.tables))


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
    positions = buffers.positions[: bucket.rows]
    masks = cache.decode_masks(positions, bucket.width * cache.block_size)
    cache.step = PagedStep(buffers.slots[: bucket.rows], buffers.table(bucket), masks, [])
    buffers.keep(model(buffers.input_ids[: bucket.rows], positions, cache.layers))
    cache.pool[:, :, cache.scratch].zero_()
