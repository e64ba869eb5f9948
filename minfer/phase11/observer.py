"""Observer: sees one step after another of an engine, and writes down what it saw."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from minfer.core.device import Stopwatch
from minfer.core.sequence import Sequence
from minfer.phase11.laps import Laps
from minfer.phase11.memory import tensor_bytes
from minfer.phase11.metrics import Metrics
from minfer.phase11.step_cost import StepCost
from minfer.phase11.step_log import KINDS, StepFacts, StepLog, Work

PREFILL, DECODE, RECOMPUTE = range(len(KINDS))
PAIRS = 8
"""Pairs of stopwatches: more than there are forwards whose times the device has not told yet."""


class Watches(NamedTuple):
    """The stopwatches of a forward and of the draw that follows."""

    forward: Stopwatch
    sample: Stopwatch


class Unsettled(NamedTuple):
    """A step that has ended on the host, and whose device times are still to be read."""

    number: int
    watches: list[Watches]  # empty if it failed
    first: list[Sequence]  # whose first token it drew


class Counters(NamedTuple):
    """What an engine has counted so far."""

    preempted: int
    recompiles: int
    graph_rows: int
    graph_blocks: int
    rows: int
    communicated: int

    @classmethod
    def of(cls, engine: Any) -> "Counters":
        """As of now."""
        usage, ranks = engine.usage, engine.ranks
        graphs = (usage.bucket_rows, usage.bucket_blocks, usage.rows)
        return cls(engine.scheduler.preemptions, engine.compilation.graphs, *graphs, ranks.nbytes if ranks else 0)


class Observer:
    """Owns the log, the metrics and the stopwatches. It never waits for the device."""

    def __init__(self, engine: Any) -> None:
        self.device = engine.device
        self.laps = Laps(engine.device)
        self.log = StepLog(engine.options.max_batch, engine.options.step_log)
        self.metrics = Metrics()
        plan = engine.ranks.plan if engine.ranks else None
        self.cost = StepCost(engine.config, tensor_bytes(engine.model)[0], engine.dtype.itemsize, plan)
        self.rotation = cycle([Watches(self.device.stopwatch(), self.device.stopwatch()) for _ in range(PAIRS)])
        self.unsettled: deque[Unsettled] = deque()
        self.traced: list[int | None] = []
        self.forget()

    def forget(self) -> None:
        """Nothing is known of the step in hand."""
        self.work: list[Work] = []
        self.watches: list[Watches] = []
        self.first: list[Sequence] = []
        self.rows = self.pairs = self.context = 0
        self.drawn = 0  # forwards whose tokens were drawn

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """In here steps are ranges of torch.profiler too; `traced` has the number of each in the log, None: no line."""
        self.laps.tracing, self.traced = True, []
        try:
            yield
        finally:
            self.laps.tracing = False

    # ---- during a step -------------------------------------------------------------------------------------------

    def begin(self, engine: Any) -> None:
        """A step begins."""
        begun = self.device.clock()
        self.forget()
        self.before = Counters.of(engine)
        self.laps.begin()
        self.spent = self.laps.started - begun

    def prepares(self, sequences: list[Sequence]) -> None:
        """These are about to be computed, as far as they are scheduled."""
        self.laps.next("prepare")
        for sequence in sequences:
            new, end = sequence.num_scheduled, sequence.num_cached + sequence.num_scheduled
            kind = PREFILL if end <= sequence.num_prompt else DECODE if new == 1 else RECOMPUTE
            self.work.append(Work(sequence.id, new, kind))
            self.pairs += new * end
            self.context += end

    def forwards(self) -> bool:
        """A forward is about to begin. False: it is none of a step's, but scores a prompt, or serves another rank."""
        if self.laps.current != "prepare":
            return False
        self.laps.next("forward")
        self.watches.append(next(self.rotation))
        self.watches[-1].forward.start()
        return True

    def forwarded(self) -> None:
        """It has been launched."""
        self.watches[-1].forward.stop()

    def samples(self) -> bool:
        """Tokens are about to be drawn. False: it is no step's draw."""
        if self.laps.current != "forward":
            return False
        self.laps.next("sample")
        self.watches[-1].sample.start()
        return True

    def sampled(self, sequences: list[Sequence]) -> None:
        """Tokens of these have been drawn, though perhaps not read."""
        self.watches[-1].sample.stop()
        self.drawn += 1
        self.rows += len(sequences)
        self.first += [sequence for sequence in sequences if not sequence.output_ids]
        self.laps.next("commit")

    # ---- after a step --------------------------------------------------------------------------------------------

    def end(self, engine: Any, advanced: list[Sequence]) -> None:
        """The step is over: write it down, with the requests that finished in it."""
        seconds = self.laps.end()
        number = self.log.add(self.facts(engine, seconds, advanced), self.work) if self.work or advanced else None
        if self.laps.tracing:
            self.traced.append(number)
        if number is None:
            return
        whole = self.drawn == len(self.watches)  # else a forward failed, and its stopwatch was never stopped
        first = [sequence for sequence in self.first if sequence.timestamps.scheduled is not None]  # else rolled back
        self.unsettled.append(Unsettled(number, self.watches if whole else [], first))
        self.log.took(number, self.spent + self.device.clock() - self.laps.started - seconds)
        self.settle()
        for sequence in advanced:
            if sequence.finished:
                self.metrics.add(sequence)

    def facts(self, engine: Any, seconds: float, advanced: list[Sequence]) -> StepFacts:
        """What the step was, by what was seen of it and by what the engine has counted since it began."""
        scheduler, now, before = engine.scheduler, Counters.of(engine), self.before
        tables, size = scheduler.tables, scheduler.block_size
        free = scheduler.allocator.num_free
        graph_rows = now.graph_rows - before.graph_rows
        tokens = sum(one.tokens for one in self.work)
        return StepFacts(
            tokens=tokens,
            padded=graph_rows - (now.rows - before.rows),
            rows=self.rows,
            finished=sum(sequence.finished for sequence in advanced),
            failed=sum(sequence.error is not None for sequence in advanced),
            preempted=now.preempted - before.preempted,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(engine.inbox),
            used_blocks=scheduler.allocator.num_blocks - free,
            free_blocks=free,
            unused_slots=sum(len(tables[one.id]) * size - one.num_cached for one in scheduler.running),
            graph_rows=graph_rows,
            graph_blocks=now.graph_blocks - before.graph_blocks,
            recompiles=now.recompiles - before.recompiles,
            comm_counted=now.communicated - before.communicated,
            started=self.laps.started,
            seconds=seconds,
            **self.laps.seconds,
            **self.cost.of(tokens, self.rows, self.pairs, self.context)._asdict(),
        )

    def settle(self) -> None:
        """Read the stopwatches of steps that the device has done."""
        while self.unsettled:
            step = self.unsettled[0]
            waiting = sum(len(one.watches) for one in self.unsettled)
            if waiting < PAIRS - 2 and not all(watches.sample.done() for watches in step.watches):
                return
            self.unsettled.popleft()
            self.log.settle(step.number, sum(w.forward.seconds() for w in step.watches) if step.watches else np.nan)
            for sequence in step.first:
                if sequence.timestamps.drawing is None and step.watches:
                    sequence.timestamps.drawing = step.watches[-1].sample.seconds()
