"""Mistakes of phase 5 where the pool is full: giving way, and coming back."""

from minfer.core.sequence import FinishReason
from minfer.phase5 import Scheduler
from tests.mutants.phase5 import OtherParts
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import HOT, served

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
