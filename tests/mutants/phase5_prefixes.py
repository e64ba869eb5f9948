"""Mistakes of phase 5 in sharing prefixes and in counting memory."""

from minfer.phase5 import BlockAllocator, Engine, Scheduler
from minfer.phase5.block_allocator import chain
from tests.mutants.phase5 import OtherParts
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import served

MUTANTS = Mutants(phase=5)
plant = MUTANTS.plant

FORK = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9, 10, 11, 12], [5, 6, 7, 8, 9, 10, 11, 12]]
"""The second and third prompts are just the two full blocks of the first."""


class EveryFullBlock(Scheduler):
    """Shares all that is full: nothing is left to compute."""

    def _shared_prefix(self, sequence):
        shared = []
        for content in self._contents(sequence, len(sequence.token_ids) // self.block_size):
            block = self.allocator.share(content)
            if block is None:
                break
            shared.append(block)
        return shared


@plant("P5-13", served(prompts=FORK, gap=1))
class NothingLeftToCompute(OtherParts):
    Scheduler = EveryFullBlock


class LastTokenAgain(EveryFullBlock):
    """Computes the last token again, into the block that it shares."""

    def _start(self, sequence, budget):
        started = super()._start(sequence, budget)
        if started and sequence.num_scheduled == 0:
            sequence.num_cached, sequence.num_scheduled = len(sequence.token_ids) - 1, 1
        return started


@plant("P5-13", served(prompts=FORK, gap=1))
class WritesIntoASharedBlock(OtherParts):
    Scheduler = LastTokenAgain


class PublishesTails(Scheduler):
    """Shares the block that is about to be filled, too."""

    def __init__(self, *args):
        super().__init__(*args)
        self.tails = {}

    def _schedule(self, sequence, count):
        super()._schedule(sequence, count)
        end = sequence.num_cached + count
        full = end // self.block_size
        if end % self.block_size:
            self.tails[tuple(sequence.token_ids[:end])] = self.tables[sequence.id][full]

    def _shared_prefix(self, sequence):
        shared = super()._shared_prefix(sequence)
        start = len(shared) * self.block_size
        for end in range(start + 1, min(start + self.block_size, len(sequence.token_ids) - self.block_size)):
            block = self.tails.get(tuple(sequence.token_ids[:end]))
            if block is not None and self.allocator.references[block]:
                self.allocator.references[block] += 1
                return [*shared, block]
        return shared


@plant("P5-13", served(prompts=[FORK[0], [*FORK[0], 4, 4, 4, 4, 4]], gap=1))
class SharesAHalfFullBlock(OtherParts):
    Scheduler = PublishesTails


@plant("P5-19", served(prompts=FORK, gap=1))
class NothingIsShared(Engine):
    def allocate(self):
        super().allocate()
        limits = self.scheduler.limits
        self.scheduler.limits = type(limits)(**{**vars(limits), "share_prefixes": False})


class FirstBlockOnly(Scheduler):
    def _shared_prefix(self, sequence):
        shared = super()._shared_prefix(sequence)
        for block in shared[1:]:
            self.allocator.release(block)
        return shared[:1]


@plant("P5-19", served(prompts=[FORK[0], FORK[0]], gap=1))
class OneBlockIsShared(OtherParts):
    Scheduler = FirstBlockOnly


class ForgetsAtOnce(BlockAllocator):
    """A prefix is known as long as somebody holds it."""

    def release(self, block):
        super().release(block)
        if not self.references[block]:
            self.forget(block)


@plant("P5-19", served(prompts=FORK, counts=(1, 1, 1), gap=3))
class ForgottenWithItsOwner(OtherParts):
    Allocator = ForgetsAtOnce


class ByTokensAlone(Scheduler):
    """A block is known by its own tokens."""

    def _contents(self, sequence, full):
        size, ids = self.block_size, sequence.token_ids
        return [chain(b"", ids[index * size : (index + 1) * size]) for index in range(full)]


A, B, C = [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]


@plant("P5-20", served(prompts=[A + B + C, C + B + A, B + B + C], gap=4))
class KnownByItsTokensAlone(OtherParts):
    Scheduler = ByTokensAlone


class ByPosition(Scheduler):
    """A block is known by its tokens and where it stands."""

    def _contents(self, sequence, full):
        size, ids = self.block_size, sequence.token_ids
        return [chain(bytes([index]), ids[index * size : (index + 1) * size]) for index in range(full)]


@plant("P5-20", served(prompts=[C + B + [4], A + C + [4], A + B + [4]], counts=(3, 3, 3), gap=4))
class KnownByTokensAndPlace(OtherParts):
    Scheduler = ByPosition


class BySum(Scheduler):
    """The hash does not see the order of the tokens, and nobody compares them."""

    def _contents(self, sequence, full):
        size, ids = self.block_size, sequence.token_ids
        return [chain(b"", sorted(ids[: (index + 1) * size])) for index in range(full)]


@plant("P5-20", served(prompts=[A + B, A[::-1] + B, B + A], gap=4))
class OrderNotHashed(OtherParts):
    Scheduler = BySum


class NeverForgets(BlockAllocator):
    """A block that is given to another is still known by what it held."""

    def allocate(self):
        block, _ = self._free.popitem(last=False)
        self.references[block] = 1
        return block


@plant(
    "P5-20",
    served(prompts=[A + B + [4], C + C + [4], A + B + [5], C + C + [6], A + B], counts=(2,) * 5, gap=4, num_blocks=3),
)
class KnownByWhatItHeldBefore(OtherParts):
    Allocator = NeverForgets


# ---- counting memory -------------------------------------------------------------------------------------------------


class ChangedState(Engine):
    """Phase 5 whose state is `change`d."""

    def debug_state(self):
        state = super().debug_state()
        self.change(state)
        return state

    def change(self, state):
        raise NotImplementedError

    @staticmethod
    def usage(held, allocated):
        return {"held": held, "allocated": allocated, "unused": 1 - held / allocated if allocated else 0.0}


@plant("P5-21", served(prompts=FORK, gap=1))
class SharedBlocksCountTwice(ChangedState):
    def change(self, state):
        held = sum(state["num_cached"].values())
        state["kv"] = self.usage(held, state["block_size"] * sum(map(len, state["tables"].values())))


@plant("P5-21", served())
class FullBlocksCountAsHeld(ChangedState):
    def change(self, state):
        slots = state["used"] * state["block_size"]
        state["kv"] = self.usage(slots, slots)


@plant("P5-21", served())
class PoolCountsAsAllocated(ChangedState):
    def change(self, state):
        state["kv"] = self.usage(state["kv"]["held"], state["num_blocks"] * state["block_size"])


@plant("P5-21", served())
class ContiguousWithoutReserve(ChangedState):
    def change(self, state):
        held = state["kv_if_contiguous"]["held"]
        state["kv_if_contiguous"] = self.usage(held, held)
