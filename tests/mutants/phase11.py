"""Mistakes of phase 11: clocks, warm-up, definitions, credit, ranges, logs that lie or grow, memory counted twice."""

import json
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from minfer.core.errors import MinferWarning
from minfer.course.machines.counting import HostReads
from minfer.phase8.decode_graphs import DecodeGraphs
from minfer.phase11 import Engine, Limits, Metrics
from minfer.phase11 import metrics as metrics_module
from minfer.phase11 import step_log as step_log_module
from minfer.phase11.laps import Laps
from minfer.phase11.memory import MemoryParts
from minfer.phase11.observer import Observed, Observer
from minfer.phase11.step_log import StepLog
from tests.mutants import probes
from tests.mutants.planting import Mutants
from tests.phase11.measured import Measured, slow_draws
from tests.phase11.test_profiles import ranges

MUTANTS = Mutants(phase=11)
plant = MUTANTS.plant


def seen(*counts, preset="all", **how):
    """All that is measured of some requests that arrive together."""

    def probe(engine_cls, lab):
        measured = Measured(engine_cls, lab, **{"costs": [3.0, 1.0, 2.0], **how})
        with slow_draws(measured.device), warnings.catch_warnings():
            warnings.simplefilter("ignore", MinferWarning)
            for count in counts:
                measured.submit(count)
            measured.drain()
        number = {one.id: place for place, one in enumerate(measured.submitted)}
        rows = [{**row, "request": number.get(row["request"])} for row in measured.engine.requests()]
        lines = [
            {**line, "work": [(number[one["id"]], one["tokens"], one["kind"]) for one in line["work"]]}
            for line in measured.engine.step_lines()
        ]
        return rows, measured.engine.metrics(preset), lines

    return probe


class Exchanged(Engine):
    """Phase 11 with an observer of another class, or with another part of it."""

    Observer: type = Observer

    def allocate(self):
        super().allocate()
        self.observer = self.Observer(self)
        self.exchange(self.observer)

    def exchange(self, observer):
        pass


# ---- clocks ----------------------------------------------------------------------------------------------------------


@plant("P11-01", seen(1, lazy=True))
class ReadsTheClockTooEarly(Engine):
    def touch_down(self):
        self.noted = self.device.clock()
        return super().touch_down()

    def commit(self, sequences, token_ids):
        for sequence, token_id in zip(sequences, token_ids.tolist(), strict=True):
            sequence.append(token_id, self.noted)


@plant("P11-01", seen(1, lazy=True))
class LaunchTime(Exchanged):
    """Takes the time in which the forward was launched for the device's."""

    def forward(self, batch):
        started = self.device.clock()
        logits = super().forward(batch)
        self.took = self.device.clock() - started
        return logits

    def exchange(self, observer):
        settle = observer.log.settle
        observer.log.settle = lambda number, _: settle(number, self.took)


def profiled_wall(engine_cls, lab):
    measured = Measured(engine_cls, lab, [3.0, 2.0])
    return measured.engine.profile([measured.prompt], lab.params(4, stop_token_ids=[7])).wall_s


@plant("P11-01", profiled_wall)
class ProfileDoesNotWait(Engine):
    def profile(self, *args, **more):
        self.device.synchronize = lambda: None
        return super().profile(*args, **more)


@plant("P11-02", seen(1, capture=10.0))
class RecordsInTheFirstStep(Engine):
    def allocate(self):
        made = self.make_buckets
        self.make_buckets = lambda: replaced(made(), largest_first=[])
        super().allocate()
        self.make_buckets, self.late = made, True

    def step(self):
        if self.late:
            self.late, self.buckets = False, self.make_buckets()
            self.graphs = DecodeGraphs(self.model, self.cache, self.device, self.buckets)
        return super().step()


def replaced(thing, **facts):
    vars(thing).update(facts)
    return thing


@plant("P11-02", seen(1, capture=10.0))
class WarmupIsNotSaid(Engine):
    def allocate(self):
        super().allocate()
        self.warmup_s = 0.0


def on_a_broken_clock(engine_cls, lab):
    kept, time.time, backwards = time.time, lambda: next(backwards), iter(range(1000, 0, -1))
    try:
        return seen(3)(engine_cls, lab)
    finally:
        time.time = kept


@plant("P11-08", on_a_broken_clock)
class WallClock(Exchanged):
    def exchange(self, observer):
        laps = Laps(type("Walled", (), {"clock": staticmethod(lambda: time.time())}))
        observer.laps = laps


@plant("P11-08", on_a_broken_clock)
class WallClockForTokens(Engine):
    def commit(self, sequences, token_ids):
        for sequence, token_id in zip(sequences, token_ids.tolist(), strict=True):
            sequence.append(token_id, time.time())


# ---- definitions -----------------------------------------------------------------------------------------------------


class OtherMetrics(Exchanged):
    """With figures that are made otherwise."""

    Figures: type = Metrics

    def exchange(self, observer):
        observer.metrics = self.Figures()


class Patched(Metrics):
    """`tpot`, `gaps` … of another definition."""

    def add(self, sequence):
        with exchanged(metrics_module, **self.patches):
            super().add(sequence)

    def figures(self, limits=None):
        with exchanged(metrics_module, **self.patches):
            return super().figures(limits)


class exchanged:
    def __init__(self, module, **names):
        self.module, self.names = module, names

    def __enter__(self):
        self.kept = {name: getattr(self.module, name) for name in self.names}
        vars(self.module).update(self.names)

    def __exit__(self, *_):
        vars(self.module).update(self.kept)


def patched(**names):
    return type("Figures", (Patched,), {"patches": names})


@plant("P11-03", seen(4))
class DividesByAll(OtherMetrics):
    Figures = patched(tpot=lambda t: (t[-1] - t[0]) / len(t) if len(t) > 1 else None)


@plant("P11-03", seen(4))
class FromTheArrival(OtherMetrics):
    """The first token's time is in TPOT."""

    Figures = patched(tpot=lambda t: t[-1] / (len(t) - 1) if len(t) > 1 else None)


@plant("P11-03", seen(1), crashes=True)
class DividesByZero(OtherMetrics):
    Figures = patched(tpot=lambda t: (t[-1] - t[0]) / (len(t) - 1))


@plant("P11-03", seen(4))
class FirstTokenAmongGaps(OtherMetrics):
    Figures = patched(gaps=lambda t: list(np.diff([0.0, *t])))


@plant("P11-06", seen(1, 1, max_batch=1))
class FromTheAdmission(Engine):
    def start(self, sequence):
        super().start(sequence)
        sequence.timestamps.arrived = sequence.timestamps.scheduled


@plant("P11-06", seen(1, 1, max_batch=1))
class QueueIsPrefill(Engine):
    def start(self, sequence):
        super().start(sequence)
        sequence.timestamps.scheduled = sequence.timestamps.arrived


@plant("P11-06", seen(1, 1, max_batch=1))
class DrawIsTheWholeStep(Exchanged):
    def exchange(self, observer):
        settle = observer.settle

        def all_of_it():
            for step in observer.unsettled:
                for sequence in step.first:
                    sequence.timestamps.drawing = sum(observer.laps.seconds.values())
            settle()

        observer.settle = all_of_it


@plant("P11-20", seen(4, 2))
class SumOfDurations(OtherMetrics):
    class Figures(Metrics):
        def figures(self, limits=None):
            made = super().figures(limits)
            duration = float(self._kept()["e2e"].sum())
            return {**made, "duration": duration, "output_throughput": made["output_tokens"] / duration}


def after_a_pause(engine_cls, lab):
    measured = Measured(engine_cls, lab, [2.0])
    measured.device.wait(7.0)
    measured.run(2)
    return measured.engine.metrics()["duration"]


@plant("P11-20", after_a_pause)
class SinceTheEngineWasMade(OtherMetrics):
    class Figures(Metrics):
        def figures(self, limits=None):
            kept = self._kept()
            return {**super().figures(limits), "duration": float((kept["arrived"] + kept["e2e"]).max())}


class OtherLimits(Engine):
    """Other rules for goodput."""

    def rule(self, limits):
        raise NotImplementedError

    def metrics(self, limits=None):
        from minfer.phase11.limits import PRESETS

        return super().metrics(self.rule(PRESETS[limits]) if limits else None)


class AnyLimit(Limits):
    def met(self, ttft, tpot, e2e, tokens):
        each = [(self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e)]
        return any(value <= limit for limit, value in each if limit is not None)


@plant("P11-21", seen(4, costs=[0.4, 0.1]))
class OneLimitIsEnough(OtherLimits):
    def rule(self, limits):
        return AnyLimit(**vars(limits))


class SingleTokensPass(Limits):
    def met(self, ttft, tpot, e2e, tokens):
        return super().met(ttft, 0.0 if tokens == 1 else tpot, e2e, tokens)


@plant("P11-21", seen(1, costs=[0.4], preset="reading"))
class OneTokenIsFast(OtherLimits):
    def rule(self, limits):
        return SingleTokensPass(**vars(limits))


@plant("P11-21", seen(4, costs=[0.4, 4.0], preset="answer"))
class LengthDoesNotMatter(OtherLimits):
    def rule(self, limits):
        return replace(limits, tokens=1)


@plant("P11-22", seen(4, costs=[1.0, 2.0, 3.0, 30.0]))
class AlwaysInterpolates(OtherMetrics):
    Figures = patched(percentile=lambda values, percent: float(np.percentile(values, percent)))


@plant("P11-22", seen(4, costs=[1.0, 2.0, 30.0]))
class NearestRankForTheMedian(OtherMetrics):
    Figures = patched(percentile=lambda values, percent: sorted(values)[len(values) * percent // 200])


@plant("P11-09", seen(6, 2, 3))
class InTheOrderOfComing(Engine):
    def requests(self):
        rows = super().requests()
        for row, request in zip(rows, sorted(row["request"] for row in rows), strict=True):
            row["request"] = request
        return rows


@plant("P11-09", seen(4, 2, max_batch=1))
class AdmissionOfTheLastOne(Engine):
    """Keeps one moment of admission, not one for each request."""

    def start(self, sequence):
        super().start(sequence)
        self.admitted = sequence.timestamps.scheduled

    def commit(self, sequences, token_ids):
        for sequence in self.made:
            sequence.timestamps.scheduled = self.admitted
        super().commit(sequences, token_ids)

    def sequences(self, *args, **more):
        made = super().sequences(*args, **more)
        self.made = [*getattr(self, "made", []), *made]
        return made


# ---- looking changes nothing -----------------------------------------------------------------------------------------


def reads(engine_cls, lab):
    measured = Measured(engine_cls, lab, [1.0])
    measured.submit(5)
    measured.engine.step()
    before = measured.device.synchronizations
    with HostReads() as counted:
        measured.engine.step()
    return counted.total, measured.device.synchronizations - before


@plant("P11-07", reads)
class WaitsForEachPart(Engine):
    def forward(self, batch):
        logits = super().forward(batch)
        self.device.synchronize()
        return logits


@plant("P11-07", reads)
class ReadsTheRows(Engine):
    def forward(self, batch):
        batch.rows.tolist()
        return super().forward(batch)


def twice(engine_cls, lab):
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    hot = lab.params(6, temperature=1.5, seed=3)
    prompt = probes.ids(model, 5)
    return [one.token_ids for one in [*engine.profile([prompt], hot).completions, *engine.generate([prompt], hot)]]


@plant("P11-07", twice)
class ProfilesGreedily(Engine):
    def profile(self, prompts, params=None, trace=None):
        each = params if isinstance(params, list) else [params]
        return super().profile(prompts, [replace(one, temperature=0.0) for one in each], trace)


# ---- the trace -------------------------------------------------------------------------------------------------------


@cache
def traced(*counts, fail_at=None):
    def probe(engine_cls, lab):
        path = lab.new_folder() / "trace.json"
        measured = Measured(engine_cls, lab, [1.0], fail_at=fail_at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MinferWarning)
            asked = [lab.params(count) for count in counts]
            profile = measured.engine.profile([measured.prompt] * len(counts), asked, trace=path)
        spans = ranges(path)
        depths = [(name, sum(s <= start and end <= e for _, s, e in spans)) for name, start, end in spans]
        return depths, profile.error is None

    return probe


class OtherLaps(Exchanged):
    Laps: type = Laps

    def exchange(self, observer):
        observer.laps = self.Laps(self.device)


@plant("P11-10", traced(4, 4, fail_at=4))
class LeavesRangesOpen(OtherLaps):
    """Closes a step's ranges only after its last part."""

    class Laps(Laps):
        def end(self):
            if self.current != "commit":
                self.kept, self._ranges = self._ranges, []
            return super().end()


@plant("P11-10", traced(3, 2))
class PartsOutsideOfSteps(OtherLaps):
    class Laps(Laps):
        def begin(self):
            super().begin()
            while self._ranges:
                self._close()
            if self.tracing:
                self._open("schedule")


@plant("P11-10", traced(4, fail_at=4), crashes=True)
class NoTraceOfFailures(Engine):
    def profile(self, *args, **more):
        profile = super().profile(*args, **more)
        if profile.error is not None:
            raise profile.error
        return profile


def seen_kernels(engine_cls, lab):
    """How the kernels' own times add up, and which was called how often."""
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    profile = engine.profile([probes.ids(model, 5)], lab.params(3))
    try:
        engine.profile([[5]], lab.params(1), trace=lab.new_folder() / "nowhere" / "trace.json")
    except Exception as error:
        said = type(error).__name__, len(engine.record.forwarded)
    own = sum(kernel.seconds for kernel in profile.kernels)
    order = [kernel.seconds for kernel in profile.kernels]
    calls = {kernel.name: kernel.calls for kernel in profile.kernels}
    return own <= 1.001 * profile.busy_s < profile.wall_s, order == sorted(order, reverse=True), calls, said


@plant("P11-40", seen_kernels)
class InnerCallsCountTwice(Engine):
    def profile(self, *args, **more):
        profile = super().profile(*args, **more)
        profile.kernels = [replace(kernel, seconds=2 * kernel.seconds) for kernel in profile.kernels]
        return profile


@plant("P11-40", seen_kernels)
class ByName(Engine):
    def profile(self, *args, **more):
        profile = super().profile(*args, **more)
        profile.kernels.sort(key=lambda kernel: kernel.name)
        return profile


@plant("P11-40", seen_kernels)
class BusyAllTheTime(Engine):
    def profile(self, *args, **more):
        profile = super().profile(*args, **more)
        profile.busy_s = profile.wall_s
        return profile


# ---- the step log ----------------------------------------------------------------------------------------------------


class OtherFacts(Exchanged):
    """Writes down something else of a step."""

    def change(self, facts, observer):
        raise NotImplementedError

    def exchange(self, observer):
        facts = observer.facts
        observer.facts = lambda *args: self.change(facts(*args), observer)


@plant("P11-30", seen(3, 3, 2, max_batch=2))
class QueueWithoutTheInbox(OtherFacts):
    def change(self, facts, observer):
        return facts._replace(waiting=0)


@plant("P11-30", seen(3, 3, 2, max_batch=2))
class RowsAreTokens(OtherFacts):
    def change(self, facts, observer):
        return facts._replace(rows=facts.tokens)


@plant("P11-30", seen(6, 6, num_blocks=3))
class PreemptionsSoFar(OtherFacts):
    def change(self, facts, observer):
        return facts._replace(preempted=self.scheduler.preemptions)


@plant("P11-30", seen(3, 3))
class EmptyBlocksAreUnused(OtherFacts):
    def change(self, facts, observer):
        return facts._replace(unused_slots=facts.unused_slots + facts.free_blocks)


@plant("P11-30", seen(3, 3))
class AllAreDecodes(Exchanged):
    class Observer(Observer):
        @contextmanager
        def launch(self, engine, sequences):
            with super().launch(engine, sequences) as observed:
                observed.work = [one._replace(kind=1) for one in observed.work]
                yield observed


def idle(engine_cls, lab):
    measured = Measured(engine_cls, lab)
    measured.engine.step()
    return len(measured.engine.step_lines())


@plant("P11-30", idle)
class LinesForNothing(Exchanged):
    class Observer(Observer):
        def write(self, engine):
            if not self.flying:
                self.log.add(self.facts(engine, Observed(counted=self.before)), [])
            super().write(engine)


@plant("P11-31", seen(3))
class TheWaitIsLost(OtherFacts):
    """Of the forward, only its launch is a part."""

    def change(self, facts, observer):
        return facts._replace(commit=0.0)


@plant("P11-31", seen(3))
class PartsOfAllSteps(OtherLaps):
    class Laps(Laps):
        def next(self, part, seconds):
            super().next(part, seconds)
            if part == "commit":
                before, self.before = getattr(self, "before", {}), seconds
                seconds.update({name: seconds[name] + before.get(name, 0.0) for name in seconds})


def on_a_card(engine_cls, lab):
    from minfer.course.machines.simulated import SimulatedDevice

    model = lab.model()
    engine = lab.engine(engine_cls, model, block_size=4, num_blocks=30, max_batch=5, device=SimulatedDevice())
    for length in (3, 4, 5):
        engine.submit(probes.ids(model, length), lab.params(4))
    for _ in range(4):
        engine.step()
    return [(line["graph"], line["padded"], line["tokens"]) for line in engine.step_lines()]


@plant("P11-32", on_a_card)
class PaddingIsTokens(OtherFacts):
    def change(self, facts, observer):
        return facts._replace(tokens=facts.tokens + facts.padded, padded=0)


@plant("P11-32", on_a_card)
class GraphsSoFar(OtherFacts):
    def change(self, facts, observer):
        return facts._replace(graph_rows=self.usage.bucket_rows)


def compiled(engine_cls, lab):
    from minfer.course.machines.compiles import Compiles

    model = lab.model()
    engine = lab.engine(engine_cls, model, compiler=Compiles.name)
    lab.run(engine, [probes.ids(model, 4)], lab.params(2))
    return [line["recompiles"] for line in engine.step_lines()]


@plant("P11-37", compiled)
class CompiledSoFar(OtherFacts):
    def change(self, facts, observer):
        return facts._replace(recompiles=self.compilation.graphs)


@cache
def cost(family="llama"):
    def probe(engine_cls, lab):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model, chunk_size=6)
        lab.run(engine, [probes.ids(model, 9), probes.ids(model, 4)], lab.params(3))
        return [(line["flops"], line["bytes_read"], line["bytes_written"]) for line in engine.step_lines()]

    return probe


class OtherCost(Exchanged):
    def exchange(self, observer):
        self.change(observer.cost)


@plant("P11-33", cost())
class OneOperationForTwo(OtherCost):
    def change(self, cost):
        cost.per_token //= 2


@plant("P11-33", cost("gpt2"))
class EveryMlpHasAGate(OtherCost):
    def change(self, cost):
        extra = 2 * self.config.num_layers * self.config.hidden_size * self.config.intermediate_size
        cost.per_token += 0 if self.config.rope else extra


@plant("P11-33", cost())
class LogitsOfAllTokens(OtherCost):
    def change(self, cost):
        cost.per_token, cost.per_row = cost.per_token + cost.per_row, 0


@plant("P11-33", cost())
class NoAttention(OtherCost):
    def change(self, cost):
        cost.per_pair = 0


@plant("P11-33", cost("llama"))
class CachePerQueryHead(OtherCost):
    def change(self, cost):
        cost.kv_bytes *= self.config.num_heads


@plant("P11-33", cost("tied"))
class ReadsNoWeights(OtherCost):
    def change(self, cost):
        cost.weight_bytes = 0


def many_steps(engine_cls, lab):
    facts = {"max_position_embeddings": 260, "num_blocks": 80, "graph_batch": 0}
    measured = Measured(engine_cls, lab, [1.0], answer=[7] * 250, **facts)
    for _ in range(9):
        measured.run(250)
    numbers = [line["step"] for line in measured.engine.step_lines()]
    return len(numbers), numbers[:1], numbers[-1:], measured.engine.step_lines()[0]["started"]


class OtherLog(Exchanged):
    Log: type = StepLog

    def exchange(self, observer):
        observer.log = self.Log(self.options.max_batch, self.options.step_log)


@plant("P11-34", many_steps)
class KeepsEverything(OtherLog):
    class Log(StepLog):
        def __init__(self, *args):
            super().__init__(*args)
            self.all = []

        def settle(self, number, device_forward):
            super().settle(number, device_forward)
            self.all.append(self.line(number))

        def lines(self):
            return iter(self.all)


@plant("P11-34", many_steps)
class KeepsTheFirst(OtherLog):
    class Log(StepLog):
        def numbers(self):
            return range(min(self.count, len(self.steps)))


def in_a_file(engine_cls, lab):
    path = lab.new_folder() / "steps.jsonl"
    measured = Measured(engine_cls, lab, [2.0, 1.0], step_log=str(path))
    measured.run(4)
    return [json.loads(line)["device_forward"] for line in path.read_text().splitlines()]


@plant("P11-35", in_a_file)
class WritesTooEarly(OtherLog):
    """Before the device has told its time."""

    class Log(StepLog):
        def settle(self, number, device_forward):
            super().settle(number, float("nan"))
            self.steps["device_forward"][number % len(self.steps)] = device_forward


@plant("P11-35", in_a_file, crashes=True)
class WritesWhatFillsABuffer(OtherLog):
    class Log(StepLog):
        def settle(self, number, device_forward):
            path, self.path = self.path, None
            super().settle(number, device_forward)
            self.path = path
            if path is not None:
                self.file = self.file or path.open("w", buffering=2**20)
                self.file.write(json.dumps(self.line(number)) + "\n")


def nowhere(engine_cls, lab):
    path = lab.new_folder() / "nowhere" / "steps.jsonl"
    return type(Measured(engine_cls, lab, step_log=str(path)))


@plant("P11-35", nowhere)
class SaysNothingAtFirst(Engine):
    def allocate(self):
        with exchanged(step_log_module, _checked=Path):
            super().allocate()


@plant("P11-36", seen(4, fail_at=4))
class FailuresComplete(OtherMetrics):
    class Figures(Metrics):
        def add(self, sequence):
            super().add(sequence)
            self.completed, self.failed = self.completed + self.failed, 0


@plant("P11-36", seen(4, 4, fail_at=4))
class OldTimesOfAStopwatch(Exchanged):
    """Reads the stopwatch of a forward that failed: it still shows what it showed before."""

    class Observer(Observer):
        def write(self, engine):
            for observed in self.flying:
                observed.watches = observed.watches or next(self.rotation)
            super().write(engine)


# ---- memory ----------------------------------------------------------------------------------------------------------


@cache
def memory(family):
    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.model(family), block_size=4, num_blocks=10)
        parts = engine.memory()
        prompt = probes.ids(lab.model(family), 20)
        spent = [engine.profile([prompt[:n]], lab.params(1)).memory.activations for n in (4, 20)]
        return parts.weights, parts.kv, parts.buffers, parts.total > 0, spent

    return probe


class OtherMemory(Engine):
    def change(self, parts):
        raise NotImplementedError

    def memory(self):
        return self.change(super().memory())


@plant("P11-41", memory("tied"))
class SharedCountsTwice(OtherMemory):
    def change(self, parts):
        embedding = self.config.vocab_size * self.config.hidden_size * 8
        return replace(parts, weights=parts.weights + embedding)


@plant("P11-41", memory("llama"))
class TablesAreWeights(OtherMemory):
    def change(self, parts):
        return replace(parts, weights=parts.weights + parts.buffers, buffers=0)


@plant("P11-41", memory("llama"))
class ScratchIsForgotten(OtherMemory):
    def change(self, parts):
        return replace(parts, kv=parts.kv * 10 // 11)


class Overlapping(MemoryParts):
    @property
    def total(self):
        return super().total + self.weights


def total(engine_cls, lab):
    parts = lab.engine(engine_cls, lab.model(), block_size=4, num_blocks=10).memory()
    return parts.total == parts.weights + parts.kv + parts.buffers + parts.runtime


@plant("P11-41", total)
class WeightsInTheTotalTwice(OtherMemory):
    def change(self, parts):
        return Overlapping(**vars(parts))


def activations(engine_cls, lab):
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    short, long = (engine.profile([probes.ids(model, n)], lab.params(1)).memory.activations for n in (4, 32))
    return short < long


@plant("P11-41", activations)
class ActivationsOfTheLastMoment(Engine):
    def profile(self, *args, **more):
        profile = super().profile(*args, **more)
        profile.memory = replace(profile.memory, activations=torch.zeros(10).nbytes)
        return profile
