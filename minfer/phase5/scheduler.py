"""Scheduler: which requests advance in the next step, by how many tokens, and whose memory that takes.

Policy: first come, first served. Running requests come before waiting ones; of the running, each gets one token, or a
chunk of what it has yet to compute, within the token budget. When blocks run out, the request that came last gives
its blocks back and computes again later (preemption by recompute). So the oldest request always advances, and no
trace can spin.
"""

import itertools
from collections import deque
from dataclasses import dataclass, replace

from minfer.core.sequence import Sequence, Status
from minfer.phase5.block_allocator import BlockAllocator, Content, chain


@dataclass(frozen=True)
class Limits:
    """How much one step may do."""

    block_size: int
    max_batch: int
    token_budget: int  # tokens of one step; at least max_batch, so that every running request gets its one
    chunk_size: int  # tokens of one request in one step
    share_prefixes: bool


class Scheduler:
    """Owns the queues and the block tables.

    Invariants: `running` then `waiting` is in order of arrival, unless suspects are run alone after a failure; a
    sequence has a table exactly while it runs; its table has the blocks of its first `num_cached + num_scheduled`
    tokens. Of a sequence at most one token is pending when it is scheduled.
    """

    def __init__(self, allocator: BlockAllocator, limits: Limits) -> None:
        self.allocator, self.limits, self.block_size = allocator, limits, limits.block_size
        self.most = limits  # what `restrict` cannot exceed
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.tables: dict[int, list[int]] = {}
        self.contents: dict[int, list[Content]] = {}  # of each known sequence's full blocks
        self.suspects: list[Sequence] = []
        self.in_order = True
        self.fresh: list[int] = []  # blocks handed out since the last step, with whatever their last owner left there
        self.arrivals: dict[int, int] = {}  # of each known sequence, which it was
        self._counter = itertools.count()
        self.preemptions = 0
        self.shared_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Put a request at the end of the queue."""
        self.arrivals[sequence.id] = next(self._counter)
        self.waiting.append(sequence)

    def schedule(self) -> list[Sequence]:
        """The next step's sequences, each with `num_scheduled` set and its blocks in place."""
        if self.suspects:
            self.in_order = False
            return self._isolate(self.suspects[0])
        if not self.in_order:
            self._restore_order()
        scheduled: list[Sequence] = []
        budget = max(self.limits.token_budget, len(self.running))  # more may run than `restrict` would start now
        for place, sequence in enumerate(list(self.running)):
            behind = len(self.running) - place - 1
            if sequence.length_reached or sequence.status is not Status.RUNNING:  # its last is pending; preempted
                continue
            if self._grow(sequence, budget - behind):
                scheduled.append(sequence)
                budget -= sequence.num_scheduled
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_batch:
            if not self._start(self.waiting[0], budget):
                break
            scheduled.append(self.running[-1])
            budget -= self.running[-1].num_scheduled
        return scheduled

    def restrict(self, max_batch: int, prompt_tokens: int) -> None:
        """From the next step on start no request beside `max_batch` others or more; whoever runs goes on.

        A step computes at most `prompt_tokens` tokens of prompts beside the tokens of those that decode. Both are at
        least 1; neither exceeds what the scheduler was made for. Nobody's tokens depend on it.
        """
        rows = min(max_batch, self.most.max_batch)
        budget = min(max(rows, len(self.running)) + prompt_tokens, self.most.token_budget)
        self.limits = replace(self.most, max_batch=rows, token_budget=budget)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is, and free its blocks; harmless if it is not known."""
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        self._free(sequence)
        self.acquit(sequence)
        self.contents.pop(sequence.id, None)
        self.arrivals.pop(sequence.id, None)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it goes back to the head of the queue, keeps its tokens, computes again."""
        self._send_back(sequence)
        self.preemptions += 1

    def roll_back(self, scheduled: list[Sequence]) -> None:
        """A step has failed: nothing that it wrote may be believed, and each of its requests is run alone next.

        Who had its last token by then is done, and leaves.
        """
        for sequence in scheduled:
            for block in self.tables.get(sequence.id, ()):
                self.allocator.forget(block)
            if sequence.finished:
                self.release(sequence)
        self._send_all_back()
        self.suspects = [sequence for sequence in scheduled if not sequence.finished]

    def acquit(self, sequence: Sequence) -> None:
        """A suspect has drawn a token alone, or is gone."""
        if sequence in self.suspects:
            self.suspects.remove(sequence)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def _isolate(self, sequence: Sequence) -> list[Sequence]:
        """Only `sequence`, with the pool to itself, so that a failure names its culprit."""
        if self.running != [sequence]:
            self._send_all_back()
            self.waiting.remove(sequence)
            self.waiting.appendleft(sequence)
            self._start(sequence, self.limits.token_budget)
        else:
            self._grow(sequence, self.limits.token_budget)
        return [sequence]

    def _restore_order(self) -> None:
        """After suspects were run alone: all wait again, in the order in which they came."""
        self._send_all_back()
        self.waiting = deque(sorted(self.waiting, key=lambda sequence: self.arrivals[sequence.id]))
        self.in_order = True

    def _send_all_back(self) -> None:
        for sequence in reversed(self.running[:]):
            self._send_back(sequence)

    def _send_back(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        sequence.status = Status.WAITING
        sequence.num_cached = sequence.num_scheduled = 0
        self.waiting.appendleft(sequence)

    def _grow(self, sequence: Sequence, budget: int) -> bool:
        """Schedule a running sequence; preempt those that came later until it has its blocks. False: it had to go."""
        count = self._chunk(sequence, budget)
        table = self.tables[sequence.id]
        missing = self.blocks_for(sequence.num_cached + count) - len(table)
        while missing > self.allocator.num_free:
            last = self.running[-1]
            self.preempt(last)
            if last is sequence:
                return False
        table += self._allocate(missing)
        self._schedule(sequence, count)
        return True

    def _start(self, sequence: Sequence, budget: int) -> bool:
        """Admit the head of the queue if there are blocks for all that it has to compute."""
        if sequence.length_reached:
            return False
        shared = self._shared_prefix(sequence)
        missing = self.blocks_for(sequence.num_tokens) - len(shared)
        if missing > self.allocator.num_free:
            for block in reversed(shared):
                self.allocator.release(block)
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        sequence.num_cached = len(shared) * self.block_size
        if sequence.timestamps.scheduled is None:  # else it was preempted, and finds what it has computed itself
            sequence.num_shared = sequence.num_cached
        self.shared_tokens += sequence.num_cached
        count = self._chunk(sequence, budget)
        missing = self.blocks_for(sequence.num_cached + count) - len(shared)
        self.tables[sequence.id] = shared + self._allocate(missing)
        self._schedule(sequence, count)
        return True

    def _shared_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the sequence's first tokens already; never all of them: one token at least is computed."""
        shared: list[int] = []
        if self.limits.share_prefixes:
            full = (sequence.num_tokens - 1) // self.block_size
            for content in self._contents(sequence, full):
                block = self.allocator.share(content)
                if block is None:
                    break
                shared.append(block)
        return shared

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        return min(sequence.num_tokens - sequence.num_cached, self.limits.chunk_size, budget)

    def _schedule(self, sequence: Sequence, count: int) -> None:
        """Note the step's tokens, and publish the blocks that it fills: all layers store before they read.

        A block with a pending token is published one step later, when it is known what the block holds.
        """
        sequence.num_scheduled = count
        if self.limits.share_prefixes:
            known = min(sequence.num_cached + count, len(sequence.token_ids))
            first, full = max(0, sequence.num_cached - 1) // self.block_size, known // self.block_size
            table, contents = self.tables[sequence.id], self._contents(sequence, full)
            for index in range(first, full):
                self.allocator.publish(table[index], contents[index])

    def _contents(self, sequence: Sequence, full: int) -> list[Content]:
        """What the sequence's first `full` blocks hold."""
        contents = self.contents.setdefault(sequence.id, [])
        while len(contents) < full:
            start = len(contents) * self.block_size
            tokens = sequence.token_ids[start : start + self.block_size]
            contents.append(chain(contents[-1].digest if contents else b"", tokens))
        return contents[:full]

    def _allocate(self, count: int) -> list[int]:
        blocks = [self.allocator.allocate() for _ in range(count)]
        self.fresh += blocks
        return blocks

    def _free(self, sequence: Sequence) -> None:
        for block in reversed(self.tables.pop(sequence.id, [])):  # the end of a prefix is forgotten before its start
            self.allocator.release(block)
