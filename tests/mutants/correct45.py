"""Right engines of another make, for phases 4 and 5."""

import torch

from minfer.core.sequence import Status
from minfer.phase5 import BlockAllocator, Scheduler
from minfer.phase5 import Engine as Phase5Engine
from tests.mutants.correct import Variant
from tests.mutants.left_padded import LeftPadded
from tests.mutants.phase5 import OtherParts


class LastFreedFirst(BlockAllocator):
    """Hands out the block that was freed last."""

    def allocate(self):
        self._free.move_to_end(next(reversed(self._free)), last=False)
        return super().allocate()


class LifoBlocks(OtherParts):
    Allocator = LastFreedFirst


class Swapping(Scheduler):
    """Who gives way takes its keys and values along to the host's memory, and brings them back."""

    def __init__(self, *args):
        super().__init__(*args)
        self.layers, self.swapped = [], {}

    def preempt(self, sequence):
        held = sequence.num_cached
        blocks = torch.tensor(self.tables[sequence.id][: self.blocks_for(held)], dtype=torch.int64)
        saved = [(layer.keys[blocks].clone(), layer.values[blocks].clone()) for layer in self.layers]
        super().preempt(sequence)
        self.swapped[sequence.id] = held, saved

    def roll_back(self, scheduled):
        super().roll_back(scheduled)
        self.swapped.clear()

    def release(self, sequence):
        self.swapped.pop(sequence.id, None)
        super().release(sequence)

    def _start(self, sequence, budget):
        if sequence.id not in self.swapped:
            return super()._start(sequence, budget)
        if self.blocks_for(len(sequence.token_ids)) > self.allocator.num_free:
            return False
        sequence.num_cached, saved = self.swapped.pop(sequence.id)
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        count = self._chunk(sequence, budget)
        table = [self.allocator.allocate() for _ in range(self.blocks_for(sequence.num_cached + count))]
        self.tables[sequence.id] = table
        blocks = torch.tensor(table[: self.blocks_for(sequence.num_cached)], dtype=torch.int64)
        for layer, (keys, values) in zip(self.layers, saved, strict=True):
            layer.keys[blocks], layer.values[blocks] = keys, values
        self._schedule(sequence, count)
        return True


class SwapsOut(OtherParts):
    Scheduler = Swapping

    def allocate(self):
        super().allocate()
        self.scheduler.layers = self.cache.layers


class PromptsFirst(Scheduler):
    """A step computes prompts, or else it decodes."""

    def schedule(self):
        if self.suspects:
            return super().schedule()
        scheduled, budget = [], self.limits.token_budget
        for sequence in list(self.running):
            missing = len(sequence.token_ids) - sequence.num_cached
            if sequence.status is Status.RUNNING and missing > 1 and budget and self._grow(sequence, budget):
                scheduled.append(sequence)
                budget -= sequence.num_scheduled
        while self.waiting and budget and len(self.running) < self.limits.max_batch:
            if not self._start(self.waiting[0], budget):
                break
            scheduled.append(self.running[-1])
            budget -= scheduled[-1].num_scheduled
        return scheduled or super().schedule()


class PrefillsApart(OtherParts):
    Scheduler = PromptsFirst


class LatePublishing(Scheduler):
    """A block can be shared from the step after the one that fills it."""

    def _schedule(self, sequence, count):
        sequence.num_scheduled = count
        if self.limits.share_prefixes:
            for place, content in enumerate(self._contents(sequence, sequence.num_cached // self.block_size)):
                self.allocator.publish(self.tables[sequence.id][place], content)


class PublishesLate(OtherParts):
    Scheduler = LatePublishing


VARIANTS = [
    *(Variant(4, engine_cls) for engine_cls in (LeftPadded, Phase5Engine)),
    *(Variant(5, engine_cls) for engine_cls in (LifoBlocks, SwapsOut, PrefillsApart, PublishesLate)),
]
