"""Mistakes of phase 5 in the order of work: giving way and coming back, chunks, leaving, limits, the queue."""

from minfer.core.params import SamplingParams
from minfer.core.sequence import FinishReason, Status
from minfer.phase5 import Engine, Scheduler
from tests.mutants.phase5 import Leaky, OtherParts
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import served

MUTANTS = Mutants(phase=5)
plant = MUTANTS.plant

SMALL = {"num_blocks": 6, "share_prefixes": False}
"""A pool in which requests give way to one another."""


class RaisesWhenFull(Scheduler):
    def preempt(self, sequence):
        raise IndexError("no free block")


@plant("P5-07", served(**SMALL), crashes=True)
class NoRoomIsAnError(OtherParts):
    Scheduler = RaisesWhenFull


class GivesUp(Scheduler):
    def preempt(self, sequence):
        super().preempt(sequence)
        self.release(sequence)
        sequence.finish(FinishReason.LENGTH, 0.0)


@plant("P5-07", served(**SMALL))
class NoRoomEndsTheAnswer(OtherParts):
    Scheduler = GivesUp


class TakesTheOldest(Scheduler):
    """Whoever comes back is last, and makes the first give way: nobody ends."""

    def _grow(self, sequence, budget):
        count = self._chunk(sequence, budget)
        table = self.tables[sequence.id]
        missing = self.blocks_for(sequence.num_cached + count) - len(table)
        while missing > self.allocator.num_free:
            first = next((one for one in self.running if one is not sequence), sequence)
            self.preempt(first)
            self.waiting.rotate(-1)
            if first is sequence:
                return False
        table += [self.allocator.allocate() for _ in range(missing)]
        self._schedule(sequence, count)
        return True

    def schedule(self):
        waited = [s for s in self.waiting if s.output_ids][:1]
        for sequence in waited:  # comes back at once, whoever must go for it
            while self.blocks_for(len(sequence.token_ids)) > self.allocator.num_free and self.running:
                self.preempt(self.running[0])
                self.waiting.rotate(-1)
        return super().schedule()


@plant("P5-07", served(**SMALL))
class TurnsWithoutEnd(OtherParts):
    Scheduler = TakesTheOldest


# ---- coming back -----------------------------------------------------------------------------------------------------


class ChangedPreemption(Scheduler):
    def preempt(self, sequence):
        cached = sequence.num_cached
        super().preempt(sequence)
        self.change(sequence, cached)


class KeepsCount(ChangedPreemption):
    """Goes on as a decode: the blocks are new, the keys and values are gone."""

    def change(self, sequence, cached):
        sequence.lost = cached

    def _start(self, sequence, budget):
        started = super()._start(sequence, budget)
        if started and getattr(sequence, "lost", 0):
            sequence.num_cached, sequence.num_scheduled = sequence.lost, len(sequence.token_ids) - sequence.lost
            sequence.lost = 0
        return started


@plant("P5-08", served(**SMALL))
class ComesBackAsADecode(OtherParts):
    Scheduler = KeepsCount


class LosesLast(ChangedPreemption):
    def change(self, sequence, cached):
        if sequence.output_ids:
            sequence.output_ids.pop()
            sequence.token_ids.pop()


@plant("P5-08", served(**SMALL))
class LosesTheLastToken(OtherParts):
    Scheduler = LosesLast


class StartsAnew(ChangedPreemption):
    """Takes what was said for the prompt, and counts the answer from zero."""

    def change(self, sequence, cached):
        sequence.prompt_ids, sequence.output_ids = list(sequence.token_ids), []


@plant("P5-08", served(**SMALL))
class AnswerCountedAnew(OtherParts):
    Scheduler = StartsAnew


class NewSeed(ChangedPreemption):
    def change(self, sequence, cached):
        sequence.seed += 1


HOT = [SamplingParams(count, temperature=1.5, seed=3, ignore_eos=True) for count in (6, 4, 8)]


@plant("P5-08", served(asked=HOT, **SMALL))
class GeneratorStartedAnew(OtherParts):
    Scheduler = NewSeed


class RecomputesThePrompt(ChangedPreemption):
    """Computes the prompt again, and takes the answer so far for computed."""

    def change(self, sequence, cached):
        sequence.back = bool(sequence.output_ids)

    def _start(self, sequence, budget):
        started = super()._start(sequence, budget)
        if started and getattr(sequence, "back", False):
            sequence.num_cached, sequence.num_scheduled = len(sequence.token_ids) - 1, 1
        return started


@plant("P5-08", served(**SMALL))
class OnlyTheLastTokenAgain(OtherParts):
    Scheduler = RecomputesThePrompt


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
        ends = [sequence.token_ids[sequence.num_cached + sequence.num_scheduled :] for sequence in sequences]
        for sequence, rest in zip(sequences, ends, strict=True):
            del sequence.token_ids[len(sequence.token_ids) - len(rest) :]
        batch = super().prepare(sequences)
        for sequence, rest in zip(sequences, ends, strict=True):
            sequence.token_ids += rest
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
        self._take_in()
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


# ---- the interface ---------------------------------------------------------------------------------------------------


def submitted(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), block_size=4, num_blocks=8)
    sequence = engine.submit([5, 6], lab.params(3))
    return sequence.status, engine.record.forwarded, engine.abort(-1), engine.step() == [sequence]


@plant("P5-22", submitted)
class SubmitRunsToTheEnd(Engine):
    def submit(self, prompt, params=None):
        sequence = super().submit(prompt, params)
        while not sequence.finished:
            self.step()
        return sequence


@plant("P5-22", submitted, crashes=True)
class UnknownIdsRaise(Engine):
    def abort(self, request_id):
        if request_id not in self.scheduler.tables:
            raise KeyError(request_id)
        return super().abort(request_id)


@plant("P5-22", submitted)
class StepSaysNothing(Engine):
    def step(self):
        return [sequence for sequence in super().step() if sequence.finished]


def for_nothing(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), block_size=4, num_blocks=20)
    sequence = engine.submit([5, 6], lab.params(0))
    engine.step()
    return sequence.output_ids, engine.record.forwarded


@plant("P5-22", for_nothing)
class OneTokenForNothing(Engine):
    def _queue(self, sequence):
        self.inbox.append(sequence)


def larger_than_the_pool(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), block_size=4, num_blocks=2)
    sequence = engine.submit([5] * 12, lab.params(3))
    for _ in range(5):
        engine.step()
    return sequence.status


@plant("P5-22", larger_than_the_pool)
class NeverRefuses(Engine):
    def sequences(self, prompts, params=None):
        cache, self.cache = self.cache, type("Endless", (), {"num_blocks": 10**9})
        made = super().sequences(prompts, params)
        self.cache = cache
        return made


@plant("P5-23", served(lengths=(9, 4, 6), asked=HOT))
class DrawsByRow(Engine):
    def sample(self, logits, sequences):
        for row, sequence in enumerate(sequences):
            sequence.seed += row
        drawn = super().sample(logits, sequences)
        for row, sequence in enumerate(sequences):
            sequence.seed -= row
        return drawn


@plant("P5-23", served("mistral", (12, 3, 9), (4, 4, 4), chunk_size=11))
class WindowsInDecodesOnly(Engine):
    def allocate(self):
        super().allocate()
        segment = self.cache.segment

        def unwindowed(*args):
            made = segment(*args)
            wide = type(self.cache).segment
            windows, self.cache.config = self.cache.config, _without_windows(self.cache.config)
            mask = wide(self.cache, *args).masks[None]
            self.cache.config = windows
            made.masks = dict.fromkeys(made.masks, mask)
            return made

        self.cache.segment = unwindowed


def _without_windows(config):
    return type(config)(**{**vars(config), "windows": (None,) * config.num_layers})


def two_streams(*counts):
    """A piece of the first stream, all of the second, then the rest of the first."""

    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.model(), lab.tokenizer(), block_size=4, num_blocks=20)
        first, second = (engine.stream([5, 6], lab.params(count)) for count in counts)
        head = next(first)
        return "".join(second), head + "".join(first)

    return probe


@plant("P5-24", two_streams(8, 3))
class OneStreamEndsAll(Engine):
    def run(self, sequences):
        yield from super().run(sequences)
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self.abort(sequence.id)


@plant("P5-24", two_streams(4, 8))
class OnlyOwnStepsAreShown(Engine):
    """Gives out the text of the steps that it made itself."""

    def _pieces(self, sequence):
        for _ in self.run([sequence]):
            if sequence in self.scheduled and (piece := sequence.take_text()):
                yield piece
            elif sequence.finished:
                return
