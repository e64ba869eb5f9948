"""Phase 11, Profiling: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 16 points. The parts of a step: Laps.begin, Laps.next, Laps.end
Task 2, 45 points. Latencies: Metrics.add, Metrics.figures, Limits.met
Task 3, 25 points. A line for each step: StepLog.add, StepLog.line, Observer.facts
Task 4, 8 points. What a step must cost: StepCost.of
Task 5, 6 points. Where the time goes: covered, kernels_of

Copy it (`minfer start 11`), write, then look what is right: `minfer check 11`, or
`pytest tests/phase11 --engine work/phase11.py`. Hints: `minfer hint 11 1`.
It builds on the reference of phase 8; to build on your own, import that instead.
"""

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as AbcSequence
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
    ProfilingOptions,
    StepFacts,
    Unsettled,
    Watches,
    Work,
    _checked,
    _known,
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
from minfer.core.latency import e2e, gaps, tpot, ttft
from minfer.core.prompts import Params, Prompts
from minfer.core.sequence import Completion, FinishReason, Sequence
from minfer.core.trace import Trace, check_path, peak_bytes
from minfer.phase8 import Engine as PreviousEngine

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
# Laps: a step's time on the host, shared out among its parts.


class Laps:
    """Each part lasts until the next begins, so the parts add up to the step, whatever lies between them.

    While `tracing`, the step and each part are also ranges in torch.profiler's trace; invariant: at `end` none is open.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tracing = False
        self.current: str | None = None  # None: no step is running
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.started = self.since = 0.0
        self._ranges: list[record_function] = []

    def begin(self) -> None:
        """A step begins, and its first part."""
        raise NotImplementedError("P11 task 1: Laps.begin")

    def next(self, part: str) -> None:
        """The running part ends here and `part` begins; nothing outside of a step."""
        raise NotImplementedError("P11 task 1: Laps.next")

    def end(self) -> float:
        """The step ends, and with it its last part; returns its seconds."""
        raise NotImplementedError("P11 task 1: Laps.end")

    def _open(self, name: str) -> None:
        opened = record_function(RANGE + name)
        opened.__enter__()
        self._ranges.append(opened)

    def _close(self) -> None:
        self._ranges.pop().__exit__(None, None, None)


# ==== phase11/metrics.py ============================================================================================
# Metrics: the latencies of the requests that have finished, in memory that is taken once; and their figures.


class Metrics:
    """Latencies as `minfer.core.latency` defines them, in seconds. The parts of TTFT add up to it:

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
# StepCost: the arithmetic and the memory traffic that a step cannot do without, from the config and the sizes.


class StepCost:
    """Formulas with the model's numbers put in: N tokens, of which R have logits, over contexts sᵢ, qᵢ of each new.

    flops      2·N·(weights of all layers' products) + 2·R·vocab·hidden + 4·layers·heads·head_dim·Σ qᵢ·sᵢ
               a product of (N, in) and (in, out) is 2 · N · in · out; attention does two over every context, masked or
               not: half of a prompt's are masked out, and computed
    read       all weights once, and the keys and values of Σ sᵢ tokens
    written    the keys and values of N tokens

    The gathering of pages, activations and padding come on top: the figures are what must be, not what is.
    """

    def __init__(self, config: ModelConfig, weight_bytes: int, kv_itemsize: int) -> None:
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        gated = config.rope is not None  # GPT-2's MLP has no gate
        mlp = config.intermediate_size * (3 if gated else 2)
        layer = config.hidden_size * (2 * query + 2 * kv + mlp)
        self.per_token = 2 * config.num_layers * layer
        self.per_row = 2 * config.vocab_size * config.hidden_size
        self.per_pair = 4 * config.num_layers * query
        self.weight_bytes = weight_bytes
        self.kv_bytes = config.kv_numbers_per_token * kv_itemsize

    def of(self, tokens: int, rows: int, pairs: int, context: int) -> Cost:
        """`tokens` N, `rows` R, `pairs` Σ qᵢ·sᵢ, `context` Σ sᵢ."""
        raise NotImplementedError("P11 task 4: StepCost.of")


# ==== phase11/step_log.py ===========================================================================================
# StepLog: one record for each step, in memory that is taken once; and as JSON lines.


class StepLog:
    """The last `CAPACITY` steps; beside their facts

    device_forward   seconds that the device was at the forward; NaN: it has not told, or the forward failed
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
# Observer: sees one step after another of an engine, and writes down what it saw.


class Observer:
    """Owns the log, the metrics and the stopwatches. It never waits for the device."""

    def __init__(self, engine: Any) -> None:
        self.device = engine.device
        self.laps = Laps(engine.device)
        self.log = StepLog(engine.options.max_batch, engine.options.step_log)
        self.metrics = Metrics()
        self.cost = StepCost(engine.config, tensor_bytes(engine.model)[0], engine.dtype.itemsize)
        self.rotation = cycle([Watches(self.device.stopwatch(), self.device.stopwatch()) for _ in range(PAIRS)])
        self.unsettled: deque[Unsettled] = deque()
        self.forget()

    def forget(self) -> None:
        """Nothing is known of the step in hand."""
        self.work: list[Work] = []
        self.watches: list[Watches] = []
        self.first: list[Sequence] = []
        self.rows = self.pairs = self.context = 0
        self.drawn = 0  # forwards whose tokens were drawn

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
        if not self.work and not advanced:
            return
        number = self.log.add(self.facts(engine, seconds, advanced), self.work)
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
        raise NotImplementedError("P11 task 3: Observer.facts")

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
        trace = Trace.of(whole, kind, memory=True)
        if path is not None:
            trace.write(path)
        made.completions = [sequence.completion() for sequence in sequences]
        records = trace.records
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
# Phase 11's change: `step` is observed. The hooks around it say which of its parts begins, and change nothing.


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
        with self.stepping:
            self.observer.begin(self)
            advanced: list[Sequence] = []
            try:
                advanced = super().step()
            finally:
                self.observer.end(self, advanced)
            return advanced

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """As before."""
        self.observer.prepares(sequences)
        return super().prepare(sequences)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows."""
        observed = self.observer.forwards()
        logits = super().forward(batch)
        if observed:
            self.observer.forwarded()
        return logits

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        """Logits `(R, vocab)` -> int64 `(R,)`."""
        observed = self.observer.samples()
        token_ids = super().sample(logits, sequences)
        if observed:
            self.observer.sampled(sequences)
        return token_ids

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

        Raises what `generate` raises before anything is run; what ends the run later is in the profile's `error`.
        """
        sequences = self.sequences(prompts, params)
        self.observer.laps.tracing = True
        try:
            return Profile.of(self, sequences, Path(trace) if trace is not None else None)
        finally:
            self.observer.laps.tracing = False
