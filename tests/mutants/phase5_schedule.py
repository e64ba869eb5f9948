"""Mistakes of phase 5 in the order of work: chunks, leaving, limits, the queue."""

from minfer.core.sequence import Status
from minfer.phase5 import Engine, Scheduler
from tests.mutants.phase5 import Leaky, OtherParts
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import served

MUTANTS = Mutants(phase=5)
plant = MUTANTS.plant

# ---- chunks ----------------------------------------------------------------------------------------------------------


@plant("P5-09", served())
class LastRowOffByOne(Engine):
    """Every prompt but the last of a packed batch ends one row too late."""

    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.rows = (batch.rows + 1).clamp(max=len(batch.input_ids) - 1)
        return batch


@plant("P5-09", served())
class LastRowsInOrderOfArrival(Engine):
    """The rows are packed in one order and read in another."""

    def prepare(self, sequences):
        batch = super().prepare(sequences)
        if len(batch.input_ids) > len(batch.rows):
            batch.rows = batch.rows.flip(0)
        return batch


@plant("P5-10", served(chunk_size=3))
class DrawsAfterEveryChunk(Engine):
    def prepare(self, sequences):
        known = [(sequence.prompt_ids, sequence.token_ids) for sequence in sequences]
        for sequence in sequences:
            end = sequence.num_cached + sequence.num_scheduled
            sequence.prompt_ids, sequence.token_ids = sequence.prompt_ids[:end], sequence.token_ids[:end]
        batch = super().prepare(sequences)
        for sequence, (prompt_ids, token_ids) in zip(sequences, known, strict=True):
            sequence.prompt_ids, sequence.token_ids = prompt_ids, token_ids
        return batch


@plant("P5-10", served(chunk_size=3))
class DrawsAndDropsAfterEveryChunk(DrawsAfterEveryChunk):
    """What is drawn too early is thrown away, but it was drawn."""

    def prepare(self, sequences):
        batch = super().prepare(sequences)
        self.early = [s.num_cached + s.num_scheduled < len(s.token_ids) for s in batch.sequences]
        return batch

    def commit(self, sequences, token_ids):
        kept = [row for row, early in enumerate(self.early) if not early]
        super().commit([sequences[row] for row in kept], token_ids[kept])


# ---- leaving ---------------------------------------------------------------------------------------------------------


def abort_in_prefill(engine, sequences, step):
    if step == 1:
        engine.abort(sequences[1].id)


CHUNKS = {"lengths": (5, 17, 9), "counts": (4, 4, 4), "chunk_size": 5, "act": abort_in_prefill}


class StaysInTheQueue(Scheduler):
    def release(self, sequence):
        waits = sequence in self.waiting
        super().release(sequence)
        if waits:
            self.waiting.append(sequence)
            sequence.status = Status.WAITING


@plant("P5-15", served(**{**CHUNKS, "max_batch": 1}))
class GhostInTheQueue(OtherParts):
    Scheduler = StaysInTheQueue


class LeakyPrefill(Leaky):
    """Frees at the end of a request what it noted at its first token."""

    leaks = staticmethod(lambda sequence: not sequence.output_ids)


@plant("P5-15", served(**CHUNKS))
class LeaksInPrefill(OtherParts):
    Scheduler = LeakyPrefill


@plant("P5-15", served(**CHUNKS))
class AbortedAtTheEnd(Engine):
    """Notes the abort, and goes on until the request ends."""

    def abort(self, request_id):
        self.dispatch()
        known = [*self.scheduler.running, *self.scheduler.waiting]
        for sequence in known:
            if sequence.id == request_id:
                sequence.params = type(sequence.params)(max_tokens=len(sequence.output_ids) + 1)
                return True
        return False


# ---- limits and the queue --------------------------------------------------------------------------------------------

MANY = {"lengths": (13, 2, 9, 21, 1, 6), "counts": (4,) * 6, "num_blocks": 40}


class WholePrompts(Scheduler):
    def _chunk(self, sequence, budget):
        return len(sequence.token_ids) - sequence.num_cached


@plant("P5-16", served(**MANY, chunk_size=5))
class ChunksIgnored(OtherParts):
    Scheduler = WholePrompts


class ChunksOnly(Scheduler):
    def _chunk(self, sequence, budget):
        return super()._chunk(sequence, len(sequence.token_ids))


@plant("P5-16", served(**MANY, token_budget=8, max_batch=4))
class BudgetIgnored(OtherParts):
    Scheduler = ChunksOnly


class FreeDecodes(Scheduler):
    """One token is not counted."""

    def _chunk(self, sequence, budget):
        left = len(sequence.token_ids) - sequence.num_cached
        return 1 if left == 1 else super()._chunk(sequence, min(budget + len(self.running), self.limits.token_budget))


@plant("P5-16", served(**MANY, token_budget=8, max_batch=4))
class DecodesNotCounted(OtherParts):
    Scheduler = FreeDecodes


@plant("P5-16", served(**MANY, max_batch=2))
class BatchIgnored(Engine):
    def allocate(self):
        super().allocate()
        limits = self.scheduler.limits
        self.scheduler.limits = type(limits)(**{**vars(limits), "max_batch": 1000})


class OneBatchAtATime(Scheduler):
    def schedule(self):
        waiting = self.waiting
        if self.running:
            self.waiting = type(waiting)()
        scheduled = super().schedule()
        if self.waiting is not waiting:
            waiting.extendleft(reversed(self.waiting))
            self.waiting = waiting
        return scheduled


@plant("P5-17", served(gap=2))
class NewcomersWait(OtherParts):
    Scheduler = OneBatchAtATime


class LastInFirst(Scheduler):
    def add(self, sequence):
        self.waiting.appendleft(sequence)


@plant("P5-18", served(max_batch=1))
class LastComeFirstServed(OtherParts):
    Scheduler = LastInFirst


class WhoeverFits(Scheduler):
    """Who does not fit is passed over, for as long as others do."""

    def schedule(self):
        scheduled = super().schedule()
        budget = self.limits.token_budget - sum(sequence.num_scheduled for sequence in scheduled)
        for sequence in list(self.waiting):
            if budget > 0 and len(self.running) < self.limits.max_batch and self._start(sequence, budget):
                scheduled.append(sequence)
                budget -= sequence.num_scheduled
        return scheduled


@plant("P5-18", served(lengths=(5, 18, 5), num_blocks=6))
class TheLargeOneStarves(OtherParts):
    Scheduler = WhoeverFits
