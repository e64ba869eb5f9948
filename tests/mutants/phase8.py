"""Mistakes of phase 8: buffers, buckets, padding, what is replayed and what is said of it."""

from functools import cache

import torch

from minfer.course.machines.simulated import SimulatedDevice
from minfer.phase8 import Bucket, DecodeGraphs, Engine
from minfer.phase8.decode_graphs import StepBuffers
from tests.mutants.planting import Mutants
from tests.mutants.probes import ids
from tests.phase8.graphs import GraphServing

MUTANTS = Mutants(phase=8)
plant = MUTANTS.plant


@cache
def replayed(lengths=(5, 9, 3), counts=(6, 9, 4), look=lambda serving: None, again=(), family="llama", **options):
    """All that is seen of some requests on a simulated card: tokens, logits, replays, what is said of them."""

    def probe(engine_cls, lab):
        model = lab.model(family)
        serving = GraphServing(engine_cls, lab, model, "probe", "probe", **options)
        for these in (lengths, again):
            for number, length in enumerate(these):
                serving.submit(ids(model, length, number), lab.params(counts[number]))
            for _ in range(60):
                serving.engine.step()
        width = model.config.vocab_size
        rows = [serving.engine.record.rows(sequence, width).round(6).tolist() for sequence in serving.sequences]
        seen = [(sequence.output_ids, repr(sequence.error)) for sequence in serving.sequences]
        return rows, seen, serving.device.replays, serving.engine.graph_usage(), look(serving)

    return probe


class OtherGraphs(Engine):
    """Phase 8 with other graphs."""

    Graphs: type[DecodeGraphs] = DecodeGraphs

    def allocate(self):
        super().allocate()
        self.graphs.__class__ = self.Graphs


# ---- what is filled --------------------------------------------------------------------------------------------------


class Rebinding(DecodeGraphs):
    """Gives the buffers' names to other tensors."""

    name = "input_ids"

    def fill(self, bucket, batch, step):
        buffer = getattr(self.buffers, self.name)
        kept = buffer.clone()
        super().fill(bucket, batch, step)
        setattr(self.buffers, self.name, buffer.clone())
        self.old = [*getattr(self, "old", []), buffer]
        buffer.copy_(kept)


class Stale(DecodeGraphs):
    """Leaves one of the buffers as it was when the graphs were recorded."""

    name = "positions"

    def fill(self, bucket, batch, step):
        kept = getattr(self.buffers, self.name).clone()
        super().fill(bucket, batch, step)
        getattr(self.buffers, self.name).copy_(kept)


class StalePositions(Stale):
    pass


class StaleSlots(Stale):
    name = "slots"


class StaleTables(Stale):
    name = "tables"


@plant("P8-01", replayed())
class RebindsTokens(OtherGraphs):
    Graphs = Rebinding


@plant("P8-01", replayed())
class PositionsOfTheRecording(OtherGraphs):
    Graphs = StalePositions


@plant("P8-01", replayed())
class SlotsOfTheRecording(OtherGraphs):
    Graphs = StaleSlots


@plant("P8-01", replayed())
class TablesOfTheRecording(OtherGraphs):
    Graphs = StaleTables


class MasksMadeOnce(Engine):
    """Makes the masks of a bucket before it is recorded, of the positions that are there then."""

    def allocate(self):
        super().allocate()
        masks = self.cache.decode_masks
        self.made = {}

        def once(positions, width):
            key = len(positions), width
            if key not in self.made:
                self.made[key] = masks(positions, width)
            return self.made[key]

        self.cache.decode_masks = once
        self.graphs = DecodeGraphs(self.model, self.cache, self.device, self.buckets)


plant("P8-01", replayed())(MasksMadeOnce)


@plant("P8-01", replayed(), crashes=True)
class ReadsALengthWhileRecording(Engine):
    def allocate(self):
        Engine.allocate(self)
        masks = self.cache.decode_masks
        self.cache.decode_masks = lambda positions, width: masks(positions, max(width, int(positions.max())))
        self.graphs = DecodeGraphs(self.model, self.cache, self.device, self.buckets)


# ---- which bucket ----------------------------------------------------------------------------------------------------


class Smaller(Engine):
    """Takes the next smaller graph, and leaves out what it has no room for."""

    rows = width = False

    def forward(self, batch):
        step = self.cache.step
        if batch.attention == self.cache.layers and not step.segments:
            rows, width = step.tables.shape
            if self.rows and rows > 2:
                return self.without_the_last(batch, step)
            if self.width and width > 1:
                step.tables = step.tables[:, : 1 << (width.bit_length() - 1)]
        return super().forward(batch)

    def without_the_last(self, batch, step):
        rows = 1 << ((len(step.slots) - 1).bit_length() - 1)
        step.tables, step.slots = step.tables[:rows], step.slots[:rows]
        batch.input_ids, batch.positions = batch.input_ids[:rows], batch.positions[:rows]
        left, batch.rows = len(batch.rows) - rows, batch.rows[:rows]
        logits = super().forward(batch)
        return torch.cat([logits, logits[-1:].expand(left, -1)])


@plant("P8-02", replayed(counts=(7, 7, 7)))
class DropsTheLastRows(Smaller):
    rows = True


@plant("P8-13", replayed())
class CutsTheLongestTable(Smaller):
    width = True


class Clamped(Engine):
    """A step larger than every graph takes the largest."""

    def allocate(self):
        super().allocate()
        holding = self.buckets.holding
        self.buckets.holding = lambda rows, width: holding(min(rows, self.buckets.most_rows), width)


plant("P8-02", replayed(lengths=(3,) * 5, counts=(4,) * 5, graph_batch=4, max_batch=5), crashes=True)(Clamped)


class NeverReplays(Engine):
    def forward(self, batch):
        return self.eager(batch, "prefill")


for code in ("P8-02", "P8-07", "P8-13"):
    plant(code, replayed())(NeverReplays)

# ---- what padding touches --------------------------------------------------------------------------------------------


class PaddingInSlot0(DecodeGraphs):
    def fill(self, bucket, batch, step):
        super().fill(bucket, batch, step)
        self.buffers.slots[len(step.slots) : bucket.rows] = 0


class PaddingIsWhatWasThere(DecodeGraphs):
    """Fills the rows that live, and leaves the others as an earlier step has left them."""

    def fill(self, bucket, batch, step):
        rows = len(step.slots)
        names = ("input_ids", "positions", "slots")
        kept = [getattr(self.buffers, name)[rows:].clone() for name in names]
        super().fill(bucket, batch, step)
        for name, tail in zip(names, kept, strict=True):
            getattr(self.buffers, name)[rows:] = tail


def pool(serving):
    return serving.engine.cache.pool[:, :, :-1].double().sum((0, 1, 3, 4, 5)).tolist()


@plant("P8-03", replayed(look=pool))
class PaddingIntoBlock0(OtherGraphs):
    Graphs = PaddingInSlot0


@plant("P8-03", replayed(lengths=(6, 2, 2, 2), counts=(11, 11, 11, 2), num_blocks=10, look=pool))
class PaddingOfEarlierSteps(OtherGraphs):
    Graphs = PaddingIsWhatWasThere


# ---- what is given out -----------------------------------------------------------------------------------------------


class GivesOutItsBuffer(DecodeGraphs):
    def replay(self, bucket, batch, step):
        super().replay(bucket, batch, step)
        return self.buffers.logits[: len(batch.rows)]


def kept_logits(engine_cls, lab):
    model = lab.model()
    engine = GraphServing(engine_cls, lab, model, "probe", "probe").engine
    forward, kept = engine.forward, []
    engine.forward = lambda batch: kept.append(forward(batch)) or kept[-1]
    engine.generate([ids(model, 5)], lab.params(6))
    return torch.cat(kept)


@plant("P8-05", kept_logits)
class LogitsOfTheLastReplay(OtherGraphs):
    Graphs = GivesOutItsBuffer


# ---- which steps -----------------------------------------------------------------------------------------------------


@plant("P8-07", replayed(lengths=(3, 9), counts=(9, 4), again=(8,), chunk_size=4))
class MixedStepsToo(Engine):
    """Replays the decodes of a mixed step, and what is left has no logits."""

    def forward(self, batch):
        step = self.cache.step
        decodes = len(step.tables)
        if batch.attention != self.cache.layers or not (step.segments and decodes):
            return super().forward(batch)
        rows = len(batch.rows)
        step.segments, step.slots = [], step.slots[:decodes]
        batch.input_ids, batch.positions = batch.input_ids[:decodes], batch.positions[:decodes]
        batch.rows = torch.arange(decodes)
        logits = super().forward(batch)[:rows]
        return torch.cat([logits, logits[-1:].expand(rows - len(logits), -1)])


@plant("P8-07", replayed())
class OnlyFullBuckets(Engine):
    """Replays only what fills its bucket to the last row."""

    def forward(self, batch):
        rows = len(batch.input_ids)
        return super().forward(batch) if rows & (rows - 1) == 0 else self.eager(batch, "rows")


# ---- what stays ------------------------------------------------------------------------------------------------------


class NewBuffers(DecodeGraphs):
    """Makes buffers for each step."""

    def fill(self, bucket, batch, step):
        old = self.buffers
        self.buffers = StepBuffers(len(old.input_ids), len(old.tables), old.tables.device)
        self.buffers.logits = old.logits
        super().fill(bucket, batch, step)


@plant("P8-08", replayed())
class BuffersOfTheStep(OtherGraphs):
    Graphs = NewBuffers


class PoolThatMoves(Engine):
    """Gives the keys and values another place when the tenth step comes."""

    steps = 0

    def forward(self, batch):
        self.steps += 1
        if self.steps == 10:
            self.cache.pool = self.cache.pool.clone()
            for layer, keys, values in zip(self.cache.layers, *self.cache.pool, strict=True):
                layer.keys, layer.values = keys, values
        return super().forward(batch)


plant("P8-08", replayed(counts=(14, 12, 9)))(PoolThatMoves)


def allocated_twice(engine_cls, lab):
    model = lab.model()
    serving = GraphServing(engine_cls, lab, model, "probe", "probe")
    serving.engine.allocate()
    (run,) = lab.run(serving.engine, [ids(model, 5)], lab.params(6))
    return run.token_ids, repr(run.completion.error), len(serving.device.graphs)


@plant("P8-08", allocated_twice)
class GraphsOfTheOldPool(Engine):
    def allocate(self):
        first = getattr(self, "graphs", None)
        super().allocate()
        self.graphs = first or self.graphs


@plant("P8-08", allocated_twice)
class GraphsPileUp(Engine):
    made: tuple[DecodeGraphs, ...] = ()

    def allocate(self):
        super().allocate()
        self.made = (*self.made, self.graphs)


# ---- what padding computes -------------------------------------------------------------------------------------------


class ScratchBehindTheLastBlock(DecodeGraphs):
    """What is behind a request's last block is the block that padding writes to."""

    def fill(self, bucket, batch, step):
        super().fill(bucket, batch, step)
        table = self.buffers.table(bucket)
        rows, width = step.tables.shape
        table[:rows].fill_(self.cache.scratch)
        table[:rows, :width] = step.tables


class DirtyScratch(DecodeGraphs):
    """What padding has written stays there."""

    def replay(self, bucket, batch, step):
        logits = super().replay(bucket, batch, step)
        if len(step.slots) < bucket.rows:
            self.cache.pool[:, :, self.cache.scratch, 0] = torch.nan
        return logits


def scratch_is_nan(engine_cls, lab):
    """Two requests in a bucket of 2, one in a pool whose scratch block is what padding would make of NaN."""
    model = lab.model()
    serving = GraphServing(engine_cls, lab, model, "probe", "probe")
    for length in (13, 2, 5):
        serving.submit(ids(model, length), lab.params(4))
    serving.engine.step()
    serving.engine.cache.pool[:, :, -1] = torch.nan
    serving.engine.step()
    left = bool(serving.engine.cache.pool.isnan().any())
    return left, [sequence.output_ids for sequence in serving.sequences]


@plant("P8-09", scratch_is_nan)
class ReadsWhatPaddingWrote(OtherGraphs):
    Graphs = ScratchBehindTheLastBlock


@plant("P8-09", scratch_is_nan)
class LeavesWhatPaddingWrote(OtherGraphs):
    Graphs = DirtyScratch


# ---- what is said of it ----------------------------------------------------------------------------------------------


@plant("P8-10", replayed())
class CountsReplaysOnly(Engine):
    def graph_usage(self):
        return {**super().graph_usage(), "eager": {}}


@plant("P8-10", replayed(lengths=(3,) * 5, counts=(4,) * 5, graph_batch=4, max_batch=5))
class OneReasonForAll(Engine):
    def eager(self, batch, reason):
        return super().eager(batch, "prefill")


@plant("P8-10", replayed())
class SaysNothingOfPadding(Engine):
    def graph_usage(self):
        return {**super().graph_usage(), "padded_rows": 0.0}


@plant("P8-10", replayed(graph_batch=0))
class AlwaysRecords(Engine):
    def make_buckets(self):
        buckets = super().make_buckets()
        if not buckets.rows:
            buckets.rows, buckets.widths, buckets.most_rows, buckets.most_blocks = [1], [1], 1, 1
            buckets.largest_first = [Bucket(1, 1)]
        return buckets


def room(engine_cls, lab):
    model = lab.model()
    device = SimulatedDevice(free=200 * 4 * model.config.kv_numbers_per_token * 8)
    options = {"device": device, "block_size": 4, "memory_share": 1.0, "max_batch": 32}
    return lab.engine(engine_cls, model, **options).cache.num_blocks


@plant("P8-12", room)
class PoolTakesAll(Engine):
    """Leaves room for the scratch block only."""

    def blocks_that_fit(self):
        block = self.options.block_size * self.config.kv_numbers_per_token * self.dtype.itemsize
        return min(1000, self.device.free_memory() // block - 1)
