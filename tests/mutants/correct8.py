"""A right engine of another make, for phase 8: it records a step when it first meets one, over buffers of its own."""

from collections import Counter

import torch

from minfer.phase5.paged_kv_cache import PagedStep
from minfer.phase7 import Engine as Phase7Engine
from minfer.phase8 import GraphOptions
from tests.mutants.correct import Variant


class OwnBuffers:
    """A graph of so many rows, as wide as the context, whose logits stay in its own memory."""

    def __init__(self, engine, rows, width):
        self.cache, device = engine.cache, engine.cache.pool.device
        self.flat = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self.tables = torch.zeros(rows, width, dtype=torch.int64, device=device)
        self.clear()
        model, cache, flat, tables, out = engine.model, self.cache, self.flat, self.tables, []
        self.out = out

        def work():
            masks = cache.decode_masks(flat[1], width * cache.block_size)
            cache.step = PagedStep(flat[2], tables, masks, [])
            out[:] = [model(flat[0], flat[1], cache.layers)]

        kept = cache.step
        self.graph = engine.device.graph(work)
        cache.step = kept
        cache.pool[:, :, -1] = 0

    def clear(self):
        self.flat[:2].fill_(0)
        self.flat[2].fill_(self.cache.scratch * self.cache.block_size)
        self.tables.fill_(self.cache.scratch)

    def replay(self, batch, step):
        rows, width = step.tables.shape
        self.clear()
        self.flat[:, :rows].copy_(torch.stack([batch.input_ids, batch.positions, step.slots]))
        self.tables[:rows] = step.tables[:, :1]
        self.tables[:rows, :width] = torch.where(step.tables == self.cache.scratch, step.tables[:, :1], step.tables)
        self.graph.replay()
        self.cache.pool[:, :, -1] = 0
        return self.out[0][:rows].clone()


class RecordsWhenMet(Phase7Engine):
    Options = GraphOptions

    def allocate(self):
        self.graphs, self.replays, self.rows, self.padded, self.others = {}, 0, 0, 0, Counter()
        super().allocate()

    def blocks_that_fit(self):
        return max(1, super().blocks_that_fit() * 2 // 3)

    def forward(self, batch):
        if batch.attention != self.cache.layers:
            return super().forward(batch)
        step, most = self.cache.step, self.options.graph_batch
        most = self.options.max_batch if most is None else most
        if step.segments or len(batch.rows) < len(step.slots):
            self.others["prefill"] += 1
            return super().forward(batch)
        rows = len(step.slots)
        if rows > most:
            self.others["rows"] += 1
            return super().forward(batch)
        size = min(most, 1 << (rows - 1).bit_length())
        if size not in self.graphs:
            self.graphs[size] = OwnBuffers(self, size, -(-self.context // self.options.block_size))
        self.replays, self.rows, self.padded = self.replays + 1, self.rows + size, self.padded + size - rows
        return self.graphs[size].replay(batch, step)

    def graph_usage(self):
        share = self.padded / self.rows if self.rows else 0.0
        return {"replays": self.replays, "eager": dict(self.others), "padded_rows": share}


VARIANTS = [Variant(8, RecordsWhenMet)]
