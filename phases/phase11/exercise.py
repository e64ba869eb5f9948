"""Phase 11, Profiling: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 16 points. The parts of a step: Laps.begin, Laps.next, Laps.end, Laps._share_out
Task 2, 45 points. Latencies: Metrics.add, Metrics.figures, Limits.met
Task 3, 25 points. A line for each step: StepLog.add, StepLog.line, Observer.facts
Task 4, 8 points. What a step must cost: StepCost.of
Task 5, 6 points. Where the time goes: covered, kernels_of

Copy it (`minfer start 11`), write, then look what is right: `minfer check 11`, or
`pytest tests/phase11 --engine work/phase11.py`. Hints: `minfer hint 11 1`.
It builds on the reference of phase 10; to build on your own, import that instead.
"""

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as AbcSequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from phase11_given import (
    CAPACITY,
    DECODE,
    GAPS,
    KINDS,
    PAIRS,
    PARTS,
    PREFILL,
    RANGE,
    RECOMPUTE,
    REQUEST,
    REQUESTS,
    STEP,
    WORK,
    Cost,
    Counters,
    Kernel,
    MemoryParts,
    Observed,
    ProfilingOptions,
    Seconds,
    StepFacts,
    Turn,
    Unsettled,
    Watches,
    Work,
    _checked,
    _known,
    _last,
    _milliseconds,
    _open,
    _rate,
    _spread,
    _works,
    tensor_bytes,
)
from torch import Tensor
from torch.profiler import record_function

from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.measures.latency import e2e, gaps, tpot, ttft
from minfer.core.measures.trace import Counter, Trace, check_path, peak_bytes
from minfer.core.prompts import Params, Prompts
from minfer.core.sequence import Completion, FinishReason, Sequence
from minfer.phase10 import Engine as PreviousEngine
from minfer.phase10 import ShardPlan

# ==== phase11/limits.py =============================================================================================
# Limits: what a service promises, by which goodput is counted.


@dataclass(frozen=True)
class Limits:
    """Most seconds of TTFT, TPOT and E2E; None: no limit. Met means: not above."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    tokens: int | None = None
    """E2E's limit is for answers of up to so many tokens; a longer one may take longer in proportion."""

    def met(self, ttft: float, tpot: float, e2e: float, tokens: int) -> bool:
        """Whether a request of so many output tokens was served in time; `tpot` is NaN for one.

        Where TPOT has a limit, a request of one token cannot show that it keeps it, and does not count as served well.
        """
        raise NotImplementedError("P11 task 2: Limits.met")

    def __str__(self) -> str:
        parts = {"TTFT": self.ttft, "TPOT": self.tpot, "E2E": self.e2e}
        said = " and ".join(f"{name} ≤ {1000 * value:g} ms" for name, value in parts.items() if value is not None)
        return f"{said} for {self.tokens} tokens" if self.tokens else said


PRESETS = {
    "chat": Limits(ttft=0.5),
    "reading": Limits(tpot=1 / 20),
    "answer": Limits(e2e=5.0, tokens=200),
    "all": Limits(ttft=0.5, tpot=1 / 20, e2e=5.0, tokens=200),
}
"""chat: something appears within 500 ms; reading: 20 tokens/s for each user; answer: 200 tokens within 5 s."""


def preset(name: str) -> Limits:
    """The limits of that name. Raises `OptionsError`."""
    if name not in PRESETS:
        raise OptionsError(f"limits {name!r} are unknown: use one of {', '.join(PRESETS)}")
    return PRESETS[name]


# ==== phase11/laps.py ===============================================================================================
# Laps: the host's time in the engine's steps, shared out among the parts of what was launched and what has landed.


class Laps:
    """Each part lasts until the next begins, so the parts add up to the turns, whatever lies between them.

    While `tracing`, turns and parts are also ranges in torch.profiler's trace; invariant: between turns none is open.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tracing = False
        self.part: str | None = None  # None: no turn is running
        self.seconds: Seconds = {}  # of whom the running part is
        self.since = 0.0
        self._ranges: list[record_function] = []

    def begin(self, seconds: Seconds) -> None:
        """A turn begins by scheduling a step that has these `seconds`."""
        raise NotImplementedError("P11 task 1: Laps.begin")

    def next(self, part: str, seconds: Seconds) -> None:
        """The running part ends here; `part` of the step that has these `seconds` begins."""
        raise NotImplementedError("P11 task 1: Laps.next")

    def end(self) -> None:
        """The turn ends, and with it its last part."""
        raise NotImplementedError("P11 task 1: Laps.end")

    def _share_out(self) -> None:
        raise NotImplementedError("P11 task 1: Laps._share_out")

    def _open(self, name: str) -> None:
        opened = record_function(RANGE + name)
        opened.__enter__()
        self._ranges.append(opened)

    def _close(self) -> None:
        self._ranges.pop().__exit__(None, None, None)


# ==== phase11/metrics.py ============================================================================================
# Metrics: the latencies of the requests that have finished, in memory that is taken once; and their figures.


class Metrics:
    """Latencies as `minfer.core.measures.latency` defines them, in seconds. The parts of TTFT add up to it:

    queue          from the arrival to the first step that has the request in it
    first_sample   what the device took to draw the first token from its logits
    prefill        all between: the steps that computed the prompt, and the reading of the token

    A request that failed is counted and has no latencies; one that its user took back is not counted.
    """

    def __init__(self) -> None:
        self.requests = np.zeros(REQUESTS, REQUEST)
        self.gaps = np.zeros(GAPS)
        self.completed = self.failed = self.num_gaps = 0

    def add(self, sequence: Sequence) -> None:
        """A request has finished."""
        raise NotImplementedError("P11 task 2: Metrics.add")

    def rows(self) -> list[dict[str, Any]]:
        """The kept requests in the order in which they finished, as plain JSON values in seconds; tpot may be null."""
        kept = self._kept()
        columns = {name: kept[name].tolist() for name in REQUEST.names or ()}
        columns["tpot"] = [None if math.isnan(took) else took for took in columns["tpot"]]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def figures(self, limits: Limits | None = None) -> dict[str, Any]:
        """The figures of the kept requests as plain JSON values; times in ms, rates per second.

        duration                 from the first arrival to the last token
        request_throughput       requests / duration
        output_throughput        output tokens / duration
        total_token_throughput   input and output tokens / duration
        tokens_per_s_per_user    1 / TPOT of each request
        request_goodput          requests that met `limits` / duration
        met                      the share of requests that did
        """
        raise NotImplementedError("P11 task 2: Metrics.figures")

    def _goodput(self, kept: np.ndarray, duration: float, limits: Limits | None) -> dict[str, Any]:
        if limits is None:
            return {}
        each = zip(*(kept[name].tolist() for name in ("ttft", "tpot", "e2e", "output_tokens")), strict=True)
        met = sum(limits.met(*one) for one in each)
        return {"request_goodput": _rate(met, duration), "met": _rate(met, len(kept))}

    def _kept(self) -> np.ndarray:
        """The kept requests, oldest first."""
        return self.requests[[n % REQUESTS for n in range(max(0, self.completed - REQUESTS), self.completed)]]


# ==== phase11/step_cost.py ==========================================================================================
# StepCost: the arithmetic and the traffic that a step cannot do without, from the config and the sizes.


class StepCost:
    """Formulas with the model's numbers put in: N tokens, of which R have logits, over contexts sᵢ, qᵢ of each new.

    flops      2·N·(weights of all layers' products) + 2·R·vocab·hidden + 4·layers·heads·head_dim·Σ qᵢ·sᵢ
               a product of (N, in) and (in, out) is 2 · N · in · out; attention does two over every context, masked or
               not: half of a prompt's are masked out, and computed
    read       all weights once, and the keys and values of Σ sᵢ tokens
    written    the keys and values of N tokens
    comm       activations between ranks: see `phase10.Communication`; 0 for one rank

    All is of this rank: its layers, heads, channels, and rows of the head. The gathering of pages, activations and
    padding come on top: the figures are what must be, not what is.
    """

    def __init__(self, config: ModelConfig, weight_bytes: int, kv_itemsize: int, plan: ShardPlan | None = None) -> None:
        """`config` and `weight_bytes` are the shard's, where the model is dealt by `plan`."""
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        gated = config.rope is not None  # GPT-2's MLP has no gate
        mlp = config.intermediate_size * (3 if gated else 2)
        layer = config.hidden_size * (2 * query + 2 * kv + mlp)
        self.per_token = 2 * config.num_layers * layer
        self.per_row = 2 * (plan.head_rows if plan else config.vocab_size) * config.hidden_size
        self.per_pair = 4 * config.num_layers * query
        self.weight_bytes = weight_bytes
        self.kv_bytes = config.kv_numbers_per_token * kv_itemsize
        self.communication = plan.communication(kv_itemsize) if plan else None

    def of(self, tokens: int, rows: int, pairs: int, context: int) -> Cost:
        """`tokens` N, `rows` R, `pairs` Σ qᵢ·sᵢ, `context` Σ sᵢ."""
        raise NotImplementedError("P11 task 4: StepCost.of")


# ==== phase11/step_log.py ===========================================================================================
# StepLog: one record for each step, in memory that is taken once; and as JSON lines.


class StepLog:
    """The last `CAPACITY` steps; beside their facts

    device_forward   seconds that the device spent on the forward; NaN: not known yet, or the forward failed
    logging          seconds that observing the step took, which are not in the step's own
    """

    def __init__(self, most_work: int, path: str | None = None) -> None:
        """`most_work`: the most requests in one step; `path`: a file for all steps, made with the first.

        Raises `OptionsError` if it cannot be written.
        """
        self.steps = np.zeros(CAPACITY, STEP)
        self.work = np.zeros(CAPACITY * min(most_work, 16) + most_work, WORK)
        self.count = 0  # steps so far
        self.worked = 0  # entries of work so far
        self.path = _checked(path) if path else None
        self.file: TextIO | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the log; it does not grow."""
        return self.steps.nbytes + self.work.nbytes

    def add(self, facts: StepFacts, work: AbcSequence[Work]) -> int:
        """Write a step's record and return its number."""
        raise NotImplementedError("P11 task 3: StepLog.add")

    def took(self, number: int, seconds: float) -> None:
        """Observing step `number` took so long."""
        self.steps["logging"][number % CAPACITY] = seconds

    def settle(self, number: int, device_forward: float) -> None:
        """The device has told its time of step `number`, or will not (NaN): the record is complete."""
        self.steps["device_forward"][number % CAPACITY] = device_forward
        if self.path is not None:
            self.file = self.file or _open(self.path)
            self.file.write(json.dumps(self.line(number)) + "\n")

    def numbers(self) -> range:
        """The steps that are kept."""
        return range(max(0, self.count - CAPACITY), self.count)

    def records(self) -> np.ndarray:
        """The kept steps in their order: a structured array of its own, with the fields of `STEP`."""
        return self.steps[[number % CAPACITY for number in self.numbers()]]

    def lines(self) -> Iterator[dict[str, Any]]:
        """The kept steps as plain JSON values."""
        return map(self.line, self.numbers())

    def line(self, number: int) -> dict[str, Any]:
        """One step as plain JSON values; what is not known is null, and so is work that was overwritten."""
        raise NotImplementedError("P11 task 3: StepLog.line")

    def _work(self, first: int, count: int) -> list[dict[str, Any]] | None:
        if first < self.worked - len(self.work):
            return None
        place = first % len(self.work)
        return [
            {"id": int(one["request"]), "tokens": int(one["tokens"]), "kind": KINDS[one["kind"]]}
            for one in self.work[place : place + count]
        ]


# ==== phase11/observer.py ===========================================================================================
# Observer: sees one turn after another of an engine, what is launched in it and what lands, and writes it down.


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
        raise NotImplementedError("P11 task 3: Observer.facts")

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


# ==== phase11/tracks.py =============================================================================================
# Tracks: what the log knows of each step, as counter tracks of a trace.


def tracks(records: list[Any], turns: list[Turn], log: StepLog) -> Iterator[Counter]:
    """Samples for the ranges in a trace's records of some turns, the last of which is the trace's last.

    Tokens are what is computed from a step's launch on; requests and blocks are as the turn has left them.
    """
    launched = [observed for turn in turns for observed in turn.launched]
    for record, observed in _last(records, "prepare", launched):
        tokens = sum(one.tokens for one in observed.work)
        padded = observed.counted.graph_rows - observed.counted.rows
        yield Counter("tokens in the step", record.start_ns(), {"for requests": tokens, "padding": padded})
    kept = log.numbers()
    for record, turn in _last(records, "step", turns):
        if turn.over and turn.over[-1] in kept:
            line = log.line(turn.over[-1])
            yield Counter("requests", record.end_ns(), {name: line[name] for name in ("running", "waiting")})
            yield Counter("blocks of the KV cache", record.end_ns(), {"used": line["used_blocks"]})


# ==== phase11/profile.py ============================================================================================
# Profile: one run looked at by torch.profiler: its kernels, how long the device had nothing to do, its trace.


@dataclass
class Profile:
    """What came of a run under the profiler. A profiled run is slower: believe its shares, not its speed.

    wall_s    from before the first step until the device had done everything
    busy_s    of that, with a kernel at work: on a card by its own time, on a CPU that of operators in any thread
    """

    completions: list[Completion] = field(default_factory=list)
    wall_s: float = 0.0
    busy_s: float = 0.0
    kernels: list[Kernel] = field(default_factory=list)
    """The one that took longest first."""
    memory: MemoryParts | None = None
    error: Exception | None = None
    """What ended the run early."""

    @property
    def idle_share(self) -> float:
        """The share of the wall time in which no kernel was at work: Python, the scheduler, launches."""
        return 1 - self.busy_s / self.wall_s if self.wall_s else 0.0

    @classmethod
    def of(cls, engine: Any, sequences: list[Sequence], path: Path | None) -> "Profile":
        """Run `sequences` on `engine`, write the trace to `path`, return what was seen, also if it failed midway."""
        made, device = cls(), engine.device

        def whole() -> None:
            started = device.clock()
            try:
                for _ in engine.run(sequences):
                    pass
            except Exception as error:
                made.error = error  # the trace so far is what one wants to see then
            device.synchronize()
            made.wall_s = device.clock() - started

        if path is not None:
            check_path(path)
        kind = device.torch_device.type
        device.synchronize()  # else what was queued before is at work in the trace
        trace = Trace.of(whole, kind, memory=True)
        records = trace.records
        if path is not None:
            trace.write(path, tracks(records, engine.observer.turns, engine.observer.log))
        made.completions = [sequence.completion() for sequence in sequences]
        made.memory = MemoryParts.of(engine, peak_bytes(records, kind))
        work = [record for record in records if _works(record, kind)]
        made.busy_s = covered((record.start_ns(), record.end_ns()) for record in work) / 1e9
        made.kernels = kernels_of(work)
        return made


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """How much time lies in at least one of the spans (start, end), which come by their start."""
    raise NotImplementedError("P11 task 5: covered")


def kernels_of(records: Iterable[Any]) -> list[Kernel]:
    """Calls and own seconds by name; records by their start, outer ones first. One's own is what no inner one took."""
    raise NotImplementedError("P11 task 5: kernels_of")


# ==== phase11/engine.py =============================================================================================
# Phase 11's change: `step` is observed. The hooks within say which part of which step begins, and change nothing.


class Engine(PreviousEngine):
    """Measures every step, and lets torch.profiler look at any run."""

    Options = ProfilingOptions
    options: ProfilingOptions

    def allocate(self) -> None:
        """As before; whatever is compiled and recorded now is `warmup_s`, and no request's."""
        started = self.device.clock()
        super().allocate()
        self.device.synchronize()
        self.warmup_s = self.device.clock() - started
        self.observer = Observer(self)

    def step(self) -> list[Sequence]:
        """As before, written down."""
        with self.stepping, self.observer.turn(self) as advanced:
            advanced += super().step()
        return advanced

    def launch(self, sequences: list[Sequence]) -> tuple[list[Sequence], Tensor]:
        """As before."""
        with self.observer.launch(self, sequences) as observed:
            observed.drawing, token_ids = super().launch(sequences)
        return observed.drawing, token_ids

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows."""
        with self.observer.forward():
            return super().forward(batch)

    def touch_down(self) -> list[Sequence]:
        """As before."""
        with self.observer.landing(self) as advanced:
            advanced += super().touch_down()
        return advanced

    # ---- what was seen -------------------------------------------------------------------------------------------

    def step_lines(self) -> list[dict[str, Any]]:
        """The last steps, one after another, as plain JSON values; see `StepFacts`."""
        with self.stepping:
            return list(self.observer.log.lines())

    def requests(self) -> list[dict[str, Any]]:
        """The last requests that finished, as plain JSON values; see `Metrics`."""
        with self.stepping:
            return self.observer.metrics.rows()

    def metrics(self, limits: Limits | str | None = None) -> dict[str, Any]:
        """The figures of those requests, as plain JSON values; see `Metrics.figures`.

        `limits`, for goodput: `Limits` or a name in `PRESETS`. Raises `OptionsError` for another name.
        """
        limits = preset(limits) if isinstance(limits, str) else limits
        with self.stepping:
            return {**self.observer.metrics.figures(limits), "warmup_s": self.warmup_s}

    def forget(self) -> None:
        """Begin log, its file and figures anew: what follows is not mixed with requests that were there to warm up."""
        with self.stepping:
            self.observer = Observer(self)

    def memory(self) -> MemoryParts:
        """What the engine's memory is taken by, but for activations, which only `profile` measures."""
        return MemoryParts.of(self)

    def profile(self, prompts: Prompts, params: Params = None, trace: str | Path | None = None) -> Profile:
        """`generate` under torch.profiler, with a range for each step and each of its parts; `trace`: a file.

        In the file the ranges stand over counter tracks of tokens, requests and blocks.
        Raises what `generate` raises before anything is run; what ends the run later is in the profile's `error`.
        """
        sequences = self.sequences(prompts, params)
        with self.observer.tracing():
            return Profile.of(self, sequences, Path(trace) if trace is not None else None)
