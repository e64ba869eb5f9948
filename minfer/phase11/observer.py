"""Observer: sees one turn after another of an engine, what is launched in it and what lands, and writes it down."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from minfer.core.device import Stopwatch
from minfer.core.sequence import Sequence
from minfer.phase11.counters import Counters
from minfer.phase11.laps import PARTS, Laps, Seconds
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


@dataclass
class Observed:
    """A step, from the moment when it is scheduled until its tokens are taken in."""

    seconds: Seconds = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    started: float = 0.0
    step: Any = None  # the engine's own, once there is one
    work: list[Work] = field(default_factory=list)
    pairs: int = 0
    context: int = 0
    drawing: list[Sequence] = field(default_factory=list)
    first: list[Sequence] = field(default_factory=list)  # whose first token it draws
    watches: Watches | None = None  # None: it failed, or was given to no device yet
    finished: int = 0
    failed: int = 0
    taken: int = 0  # tokens, by their requests
    counted: Counters | None = None
    spent: float = 0.0  # on looking at it


class Turn(NamedTuple):
    """One call of `step`: the steps that were launched in it, and those that are over at its end."""

    launched: list[Observed]
    over: list[int]  # their numbers in the log


class Unsettled(NamedTuple):
    """A step that is over on the host, and whose device times are still to be read."""

    number: int
    watches: Watches | None
    first: list[Sequence]


class Observer:
    """Owns the log, the metrics and the stopwatches. It never waits for the device.

    A step's line is written when its tokens are taken in, or when it is dropped because its requests have ended.
    """

    def __init__(self, engine: Any) -> None:
        self.device = engine.device
        self.laps = Laps(engine.device)
        self.log = StepLog(engine.options.max_batch, engine.options.step_log)
        self.metrics = Metrics()
        plan = engine.ranks.plan if engine.ranks else None
        self.cost = StepCost(engine.config, tensor_bytes(engine.model)[0], engine.dtype.itemsize, plan)
        self.rotation = cycle([Watches(self.device.stopwatch(), self.device.stopwatch()) for _ in range(PAIRS)])
        self.before = Counters.of(engine)
        self.next = Observed()  # the step that is being scheduled
        self.flying: list[Observed] = []
        self.unsettled: deque[Unsettled] = deque()
        self.turns: list[Turn] = []

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """In here turns and parts are ranges of torch.profiler too; `turns` has what each turn was about."""
        self.laps.tracing, self.turns = True, []
        try:
            yield
        finally:
            self.laps.tracing = False

    # ---- a turn --------------------------------------------------------------------------------------------------

    @contextmanager
    def turn(self, engine: Any) -> Iterator[list[Sequence]]:
        """A turn of `engine`. The caller adds the sequences that advance in it to the list."""
        begun = self.device.clock()
        advanced: list[Sequence] = []
        if self.laps.tracing:
            self.turns.append(Turn([], []))
        self.next = Observed()
        self.laps.begin(self.next.seconds)
        self.next.started, self.next.spent = self.laps.since, self.laps.since - begun
        try:
            yield advanced
        finally:
            self.laps.end()
            self.write(engine)
            for sequence in advanced:
                if sequence.finished:
                    self.metrics.add(sequence)

    @contextmanager
    def launch(self, engine: Any, sequences: list[Sequence]) -> Iterator[Observed]:
        """The scheduled step is launched. The caller sets its `drawing`, unless the launch fails."""
        observed = self.next
        observed.step = engine.launched[-1]
        self.flying.append(observed)
        if self.laps.tracing:
            self.turns[-1].launched.append(observed)
        self.laps.next("prepare", observed.seconds)
        for sequence in sequences:
            new, end = sequence.num_scheduled, sequence.num_cached + sequence.num_scheduled
            kind = PREFILL if end <= sequence.num_prompt else DECODE if new == 1 else RECOMPUTE
            observed.work.append(Work(sequence.id, new, kind))
            observed.pairs += new * end
            observed.context += end
        try:
            yield observed
            if observed.watches is not None:
                observed.watches.sample.stop()
        except BaseException:
            observed.watches = None  # of which one was never stopped
            raise
        finally:
            now = Counters.of(engine)
            observed.counted, self.before = now.since(self.before), now
            self.next = Observed(started=self.device.clock())
            self.laps.next("schedule", self.next.seconds)
        observed.first = [one for one in observed.drawing if not one.output_ids and not one.num_pending]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """A forward. It may be none of a step's, but score a prompt, or serve another rank: then nothing is noted."""
        if self.laps.part != "prepare":
            yield
            return
        observed = self.flying[-1]
        self.laps.next("forward", observed.seconds)
        watches = observed.watches = next(self.rotation)
        watches.forward.start()
        yield
        watches.forward.stop()
        self.laps.next("sample", observed.seconds)
        watches.sample.start()

    @contextmanager
    def landing(self, engine: Any) -> Iterator[list[Sequence]]:
        """The tokens of the oldest step are waited for and taken in. The caller adds those who advance to the list."""
        step = engine.launched[0]
        observed = next((one for one in self.flying if one.step is step), Observed())  # launched before `forget`
        self.laps.next("commit", observed.seconds)
        advanced: list[Sequence] = []
        try:
            yield advanced
        finally:
            observed.finished = sum(sequence.finished for sequence in advanced)
            observed.failed = sum(sequence.error is not None for sequence in advanced)
            observed.taken = len(advanced) - observed.failed
            self.laps.next("schedule", self.next.seconds)

    # ---- after a turn --------------------------------------------------------------------------------------------

    def write(self, engine: Any) -> None:
        """Write down the steps that are no longer in flight: they have landed, or were dropped."""
        flying = [one for one in self.flying if any(one.step is step for step in engine.launched)]
        over = [one for one in self.flying if not any(one is other for other in flying)]
        self.flying = flying
        if over:  # scheduling what was not launched, because nobody had anything to do
            over[-1].seconds["schedule"] += self.next.seconds["schedule"]
        for observed in over:
            begun = self.device.clock()
            number = self.log.add(self.facts(engine, observed), observed.work)
            first = [sequence for sequence in observed.first if sequence.timestamps.scheduled is not None]
            self.unsettled.append(Unsettled(number, observed.watches, first))
            if self.laps.tracing:
                self.turns[-1].over.append(number)
            self.log.took(number, observed.spent + self.device.clock() - begun)
        self.settle()

    def facts(self, engine: Any, observed: Observed) -> StepFacts:
        """What the step was, by what was seen of it and by what the engine has counted meanwhile."""
        scheduler, counted = engine.scheduler, observed.counted
        assert counted is not None
        tables, size = scheduler.tables, scheduler.block_size
        free = scheduler.allocator.num_free
        tokens, rows = sum(one.tokens for one in observed.work), len(observed.drawing)
        return StepFacts(
            tokens=tokens,
            padded=counted.graph_rows - counted.rows,
            rows=rows,
            discarded=rows - observed.taken,
            finished=observed.finished,
            failed=observed.failed,
            preempted=counted.preempted,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(engine.inbox),
            used_blocks=scheduler.allocator.num_blocks - free,
            free_blocks=free,
            unused_slots=sum(len(tables[one.id]) * size - one.num_cached for one in scheduler.running),
            graph_rows=counted.graph_rows,
            graph_blocks=counted.graph_blocks,
            recompiles=counted.recompiles,
            comm_counted=counted.communicated,
            started=observed.started,
            seconds=sum(observed.seconds.values()),
            **observed.seconds,
            **self.cost.of(tokens, rows, observed.pairs, observed.context)._asdict(),
        )

    def settle(self) -> None:
        """Read the stopwatches of steps that the device has done."""
        while self.unsettled:
            step = self.unsettled[0]
            if len(self.unsettled) < PAIRS - 2 and step.watches is not None and not step.watches.sample.done():
                return
            self.unsettled.popleft()
            self.log.settle(step.number, np.nan if step.watches is None else step.watches.forward.seconds())
            for sequence in step.first:
                if sequence.timestamps.drawing is None and step.watches is not None:
                    sequence.timestamps.drawing = step.watches.sample.seconds()
