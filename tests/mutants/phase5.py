"""Mistakes of phase 5 in the pool: frees, leaks, tables, slots, what is read and written."""

from minfer.core.sequence import FinishReason
from minfer.phase5 import BlockAllocator, Engine, Scheduler
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import served

MUTANTS = Mutants(phase=5)
plant = MUTANTS.plant


class OtherParts(Engine):
    """Phase 5 with another scheduler or allocator."""

    Scheduler: type[Scheduler] = Scheduler
    Allocator: type[BlockAllocator] = BlockAllocator

    def allocate(self):
        super().allocate()
        self.scheduler = self.Scheduler(self.Allocator(self.cache.num_blocks), self.scheduler.limits)
        self.owners, self.cache.tables = self.scheduler.running, self.scheduler.tables


# ---- frees and leaks -------------------------------------------------------------------------------------------------


def release_twice(engine, sequences, step):
    for sequence in sequences:
        if sequence.finished:
            engine.release(sequence)


class Unguarded(BlockAllocator):
    """A free list that takes whatever it is given."""

    def release(self, block):
        self.references[block] -= 1
        if self.references[block] <= 0:
            self._free[block if block not in self._free else block + self.num_blocks] = None

    def allocate(self):
        block, _ = self._free.popitem(last=False)
        block %= self.num_blocks
        self.forget(block)
        self.references[block] = 1
        return block


class KeepsTables(Scheduler):
    """Forgets to forget the table of a request that has left."""

    def __init__(self, *args):
        super().__init__(*args)
        self.left = {}

    def _free(self, sequence):
        table = self.tables.pop(sequence.id, self.left.get(sequence.id, []))
        self.left[sequence.id] = table
        for block in table:
            self.allocator.release(block)


@plant("P5-01", served(act=release_twice))
class FreesTwice(OtherParts):
    Scheduler, Allocator = KeepsTables, Unguarded


class IgnoresFree(BlockAllocator):
    """A second release does nothing to a block that is free, but takes it away from its next owner."""

    def release(self, block):
        if self.references[block]:
            super().release(block)


@plant("P5-01", served(act=release_twice, gap=4, num_blocks=6, share_prefixes=False))
class FreesWhatIsNowAnothers(OtherParts):
    Scheduler, Allocator = KeepsTables, IgnoresFree


class Leaky(Scheduler):
    """Keeps the blocks of requests that end as `leaks` says."""

    leaks = staticmethod(lambda sequence: True)

    def _free(self, sequence):
        if sequence.finished and self.leaks(sequence):
            self.tables.pop(sequence.id, None)
        else:
            super()._free(sequence)


def ended_by(reason):
    return staticmethod(lambda sequence: sequence.finish_reason is reason)


class LeakyLength(Leaky):
    leaks = ended_by(FinishReason.LENGTH)


class LeakyStop(Leaky):
    leaks = ended_by(FinishReason.STOP)


class LeakyAbort(Leaky):
    leaks = ended_by(FinishReason.ABORT)


def abort_second(engine, sequences, step):
    if step == 3:
        engine.abort(sequences[1].id)


@plant("P5-02", served())
class LeaksAtLength(OtherParts):
    Scheduler = LeakyLength


def stopped(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.scripted(1, [9, 9, lab.eos]), block_size=4, num_blocks=4)
    engine.generate([[5]], lab.params(9, ignore_eos=False))
    return engine.debug_state()["free"]


@plant("P5-02", stopped)
class LeaksAtEndTokens(OtherParts):
    Scheduler = LeakyStop


@plant("P5-02", served(act=abort_second))
class LeaksAtAborts(OtherParts):
    Scheduler = LeakyAbort


def closed(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), lab.tokenizer(), block_size=4, num_blocks=4)
    stream = engine.stream([5, 6], lab.params(9))
    next(stream)
    stream.close()
    return engine.debug_state()["free"]


@plant("P5-02", closed)
class ClosedStreamsRunOn(Engine):
    def run(self, sequences):
        self.inbox.extend(sequences)
        while not all(sequence.finished for sequence in sequences):
            yield [sequence for sequence in self.step() if sequence in sequences]
        for sequence in sequences:
            if sequence.error:
                raise sequence.error


def failing(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.scripted(3, [9] * 9, fail_at=6), block_size=4, num_blocks=8)
    try:
        engine.generate([5, 6, 7], lab.params(9))
    except ArithmeticError:
        return engine.debug_state()["free"]
    return "no error"


@plant("P5-02", failing)
class LeaksAtErrors(OtherParts):
    def _fail(self, step, error):
        for sequence in self.scheduled:
            self.scheduler.tables.pop(sequence.id, None)
        return super()._fail(step, error)


# ---- what is read ----------------------------------------------------------------------------------------------------


class NothingMasked(Engine):
    """A decode row sees all of its blocks to their ends."""

    def allocate(self):
        super().allocate()
        masks = self.cache.decode_masks
        self.cache.decode_masks = lambda *args: {w: mask | True for w, mask in masks(*args).items()}


plant("P5-03", served())(NothingMasked)


class OneSlotTooMany(Engine):
    def allocate(self):
        super().allocate()
        masks = self.cache.decode_masks
        self.cache.decode_masks = lambda positions, width: masks(positions + 1, width)


plant("P5-03", served())(OneSlotTooMany)

# ---- where blocks end ------------------------------------------------------------------------------------------------


class OneBlockLess(Scheduler):
    def blocks_for(self, num_tokens):
        return num_tokens // self.block_size if num_tokens > self.block_size else 1


@plant("P5-04", served(lengths=(4, 5, 8)))
class NoBlockForTheRest(OtherParts):
    Scheduler = OneBlockLess


class OneBlockMore(Scheduler):
    def blocks_for(self, num_tokens):
        return num_tokens // self.block_size + 1


@plant("P5-04", served(lengths=(5,), counts=(4,), num_blocks=2), crashes=True)
class OneMoreAtTheBoundary(OtherParts):
    """Takes a block too early: a request that just fits is refused."""

    Scheduler = OneBlockMore


@plant("P5-04", served(lengths=(4, 5, 8)))
class FullBlockWrittenOver(Engine):
    """Takes the slot of the block before when a new one begins."""

    def allocate(self):
        super().allocate()
        begin, size = self.cache.begin, self.cache.block_size

        def begins(spans, positions, slots):
            late = [
                span.table[max(0, p - 1) // size] * size + p % size
                for span in spans
                for p in range(span.start, span.end)
            ]
            return begin(spans, positions, slots.new_tensor(late))

        self.cache.begin = begins


# ---- what is written, and whose it is --------------------------------------------------------------------------------


class PaddingIntoBlock0(Engine):
    """Fills the batch up to a power of two with rows that write into slot 0."""

    def forward(self, batch):
        logits = super().forward(batch)
        tokens = len(batch.input_ids)
        if tokens & (tokens - 1):
            for layer in self.cache.layers:
                layer.keys[0, 0] = layer.values[0, 0] = 0.5
        return logits


plant("P5-05", served())(PaddingIntoBlock0)


@plant("P5-06", served(counts=(2, 9, 8)))
class TablesByRow(Engine):
    """Tables stand in the order of the batch, and do not move when a row leaves."""

    def allocate(self):
        super().allocate()
        self.rows = []

    def prepare(self, sequences):
        tables = self.scheduler.tables
        if len(sequences) >= len(self.rows):
            self.rows = [tables[sequence.id] for sequence in sequences]
        self.scheduler.tables = {s.id: row for s, row in zip(sequences, self.rows, strict=False)}
        for sequence, row in zip(sequences, self.rows, strict=False):
            row += tables[sequence.id][len(row) :]
        try:
            return super().prepare(sequences)
        finally:
            self.scheduler.tables = tables
