"""Mistakes of phase 9: who waits for whom, what is overwritten too early, what is taken for known, late ends."""

from itertools import repeat

import torch

from minfer.core.sequence import Sequence
from minfer.phase5.scheduler import Scheduler
from minfer.phase9 import CopyStream, Engine, Flight, OverlapUsage, WeightStream
from minfer.phase9.copy_stream import Arrival
from tests.mutants.planting import Mutants
from tests.mutants.probes import ids
from tests.phase9.streams import StreamServing, deep

MUTANTS = Mutants(phase=9)
plant = MUTANTS.plant


def watched(lengths=(5, 9, 3), counts=(6, 9, 4), layers=2, look=lambda serving: None, params=None, **options):
    """All that is seen of some requests on streams: tokens, errors, races, waits, what was computed."""

    def probe(engine_cls, lab):
        model = deep(lab, layers=layers)
        serving = StreamServing(engine_cls, lab, model, "probe", "probe", **options)
        for number, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            serving.submit(ids(model, length, number), lab.params(count, **(params or {})))
        device, advanced = serving.device, []
        with device.watching():
            for _ in range(sum(counts) + 4):
                advanced.append(len(serving.engine.step()))
        seen = [(sequence.output_ids, repr(sequence.error)) for sequence in serving.sequences]
        waits = device.waits, device.stalls, device.synchronizations
        return seen, device.ordering.races[:1], waits, advanced, serving.engine.overlap_usage(), look(serving)

    return probe


class OtherParts(Engine):
    """Phase 9 with other parts."""

    Copies: type[CopyStream] = CopyStream
    Weights: type[WeightStream] = WeightStream

    def allocate(self):
        super().allocate()
        self.copies.__class__ = self.Copies

    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        if self.options.offload_layers:
            self.weights.__class__ = self.Weights
            prepared.will_run, prepared.has_run = self.weights.will_run, self.weights.has_run
        return prepared


# ---- tokens on their way ---------------------------------------------------------------------------------------------


class CopiesAtOnce(CopyStream):
    """Does not wait for what draws the tokens."""

    def to_host(self, numbers):
        buffer = next(self.buffers)[: len(numbers)]
        with self.stream:
            buffer.copy_(numbers, non_blocking=True)
        return Arrival(buffer, self.stream.moment())


class NeverWaited(Arrival):
    def wait(self):
        return self.buffer


class ReadsAtOnce(CopyStream):
    """Does not wait for the copy."""

    def to_host(self, numbers):
        arrival = super().to_host(numbers)
        return NeverWaited(arrival.buffer, arrival.arrived)


class OneBuffer(CopyStream):
    """Has the same place for the tokens of every step."""

    def to_host(self, numbers):
        self.buffer = getattr(self, "buffer", None)
        self.buffer = next(self.buffers) if self.buffer is None else self.buffer
        self.buffers = repeat(self.buffer)
        return super().to_host(numbers)


class MomentBeforeTheCopy(CopyStream):
    def to_host(self, numbers):
        early = self.stream.moment()
        return Arrival(super().to_host(numbers).buffer, early)


class MomentOfTheModel(CopyStream):
    """Waits for the model's stream, and not for the one that copies."""

    def to_host(self, numbers):
        return Arrival(super().to_host(numbers).buffer, self.device.current_stream().moment())


@plant("P9-01", watched())
class CopiesWhatIsNotThere(OtherParts):
    Copies = CopiesAtOnce


@plant("P9-01", watched(), crashes=True)
class ReadsWhatIsNotThere(OtherParts):
    Copies = ReadsAtOnce


@plant("P9-02", watched())
class OverwritesThePage(OtherParts):
    Copies = OneBuffer


class IdsInOnePlace(Engine):
    """Draws into the same memory in every step."""

    def sample(self, logits, sequences):
        drawn = super().sample(logits, sequences)
        if not hasattr(self, "place"):
            self.place = torch.zeros(64, dtype=torch.int64)
        return self.place[: len(drawn)].copy_(drawn)


plant("P9-02", watched())(IdsInOnePlace)


@plant("P9-04", watched(), crashes=True)
class WaitsForTheMomentBefore(OtherParts):
    Copies = MomentBeforeTheCopy


@plant("P9-04", watched(), crashes=True)
class WaitsForTheWrongStream(OtherParts):
    Copies = MomentOfTheModel


# ---- nothing overlaps ------------------------------------------------------------------------------------------------


class LandsFirst(Engine):
    """Reads the tokens of a step before it launches the next."""

    def follow(self):
        return "last"


for code in ("P9-06", "P9-14"):
    plant(code, watched())(LandsFirst)


@plant("P9-06", watched())
class WaitsForEverything(Engine):
    def touch_down(self):
        self.device.synchronize()
        return super().touch_down()


class ReadsWhenDrawn(Flight):
    def depart(self, copies):
        self.token_ids = torch.tensor(self.token_ids.tolist())
        super().depart(copies)


@plant("P9-06", watched())
class ReadsTheTokensAtOnce(Engine):
    step_type = ReadsWhenDrawn


@plant("P9-19", watched())
class FirstStepGivesNothing(Engine):
    """Only launches, when nothing is in flight."""

    def advance(self):
        if not self.launched:
            self.take_off()
            return []
        return super().advance()


# ---- ends ------------------------------------------------------------------------------------------------------------


class TakesAllIn(Flight):
    """Gives out what was drawn for requests that have ended since."""

    def arrive(self):
        drawing = list(self.drawing)
        super().arrive()
        self.drawing, self.token_ids = drawing, self.arrival.buffer.clone()


def with_ends(engine_cls, lab):
    serving = StreamServing(engine_cls, lab, lab.scripted(2, [9, 8, 7, 6, 5]), "probe", "probe")
    given = serving.submit([5, 6], lab.params(6, stop_token_ids=[7]))
    gone = serving.submit([5, 6], lab.params(6))
    with serving.device.watching():
        serving.engine.step()
        serving.engine.abort(gone.id)
        for _ in range(6):
            serving.engine.step()
    return given.output_ids, gone.output_ids, serving.state["free"]


@plant("P9-11", with_ends)
@plant("P9-15", with_ends)
class OneTokenTooMany(Engine):
    step_type = TakesAllIn


def computed(serving):
    return serving.forwarded


class Endless(Sequence):
    length_reached = False


@plant("P9-12", watched(look=computed))
class ComputesBeyondTheLength(Engine):
    """Finds out that a request is complete when its last token has been read."""

    def sequences(self, *args):
        made = super().sequences(*args)
        for sequence in made:
            sequence.__class__ = Endless
        return made


# ---- what is taken for known -----------------------------------------------------------------------------------------


class KnownOnly(Sequence):
    num_drawn = property(lambda self: len(self.output_ids))
    num_tokens = property(lambda self: len(self.token_ids) + self.num_pending)


@plant("P9-13", watched(params={"temperature": 1.5, "seed": 3}))
class DrawsAtTheKnownPosition(Engine):
    def sequences(self, *args):
        made = super().sequences(*args)
        for sequence in made:
            sequence.__class__ = KnownOnly
        return made


class NoObstacle(Flight):
    def obstacle(self):
        return "failure" if self.error else ""


for code in ("P9-13", "P9-14"):

    @plant(code, watched(params={"frequency_penalty": 1.5, "repetition_penalty": 1.4}))
    class PenaltiesOfTheStepBefore(Engine):
        step_type = NoObstacle


class NoReasons(OverlapUsage):
    def landed(self, obstacle):
        super().landed("")


@plant("P9-14", watched(params={"presence_penalty": 0.5}))
class SaysThatAllOverlaps(Engine):
    def allocate(self):
        super().allocate()
        self.overlap = NoReasons()


class PublishesPending(Scheduler):
    """Takes 0 for a token that is not known yet."""

    def _schedule(self, sequence, count):
        known = sequence.token_ids
        if sequence.num_pending:
            sequence.token_ids = [*known, 0]
        super()._schedule(sequence, count)
        sequence.token_ids = known


def shared(engine_cls, lab):
    model = lab.model("mistral")
    serving = StreamServing(engine_cls, lab, model, "probe", "probe", share_prefixes=True)
    prompt = ids(model, 7)
    serving.submit(prompt, lab.params(9))
    serving.engine.step()
    serving.submit([*prompt, 0, 9], lab.params(2))
    serving.drain()
    return serving.state["shared_tokens"]


class NeverPublishesLate(Scheduler):
    """Publishes only what a step fills with tokens that are known by then."""

    def _schedule(self, sequence, count):
        if sequence.num_pending and self.limits.share_prefixes:
            sequence.num_scheduled = count
            return
        super()._schedule(sequence, count)


def shared_late(engine_cls, lab):
    model = lab.model("mistral")
    serving = StreamServing(engine_cls, lab, model, "probe", "probe", share_prefixes=True)
    first = serving.submit(ids(model, 7), lab.params(9))
    serving.drain()
    serving.submit([*first.token_ids, 5], lab.params(1))
    serving.drain()
    return serving.state["shared_tokens"]


class OtherScheduler(Engine):
    Kind: type[Scheduler] = Scheduler

    def allocate(self):
        super().allocate()
        self.scheduler.__class__ = self.Kind


@plant("P9-18", shared)
class SharesWhatIsNotKnown(OtherScheduler):
    Kind = PublishesPending


@plant("P9-18", shared_late)
class SharesNoAnswers(OtherScheduler):
    Kind = NeverPublishesLate


# ---- failures --------------------------------------------------------------------------------------------------------


class FeedsAsItIs(Flight):
    """Gives the next step whatever was drawn, though it be no token."""

    def feed(self, batch):
        super().feed(batch)
        row_of = {sequence.id: row for row, sequence in enumerate(self.drawing)}
        for place, sequence in enumerate(batch.sequences):
            if sequence.num_pending:
                batch.input_ids[batch.rows[place]] = self.token_ids[row_of[sequence.id]]


def fed(engine_cls, lab):
    """The least token that the model is given, when one request's logits are NaN."""
    module = lab.model().module()
    module.embed_tokens.weight.data[77] = torch.nan
    engine = StreamServing(engine_cls, lab, module, "probe", "probe").engine
    forward, seen = engine.forward, []
    engine.forward = lambda batch: seen.append(int(batch.input_ids.min())) or forward(batch)
    made = engine.sequences([[5, 77], [6, 7]], lab.params(3, logit_bias={77: -1e9}))
    for _ in engine.run(made):
        pass
    return min(seen), [sequence.output_ids for sequence in made]


@plant("P9-16", fed)
class FeedsWhatIsNoToken(Engine):
    step_type = FeedsAsItIs


def failing_once(engine_cls, lab):
    model = lab.scripted(3, [9] * 20, fail_at=5)
    serving = StreamServing(engine_cls, lab, model, "probe", "probe")
    made = [serving.submit([5] * 3, lab.params(count)) for count in (2, 8)]
    for _ in range(20):
        serving.engine.step()
    return [(sequence.output_ids, repr(sequence.error)) for sequence in made]


@plant("P9-17", failing_once)
class FailsTheStepInFlight(Engine):
    """What cannot be launched takes what is in flight with it."""

    def launch_next(self):
        super().launch_next()
        if len(self.launched) > 1 and self.launched[-1].error:
            error = self.launched[-1].error
            for sequence in self.launched[0].scheduled:
                sequence.error = error
                self.release(sequence)
                sequence.finish("abort", 0.0)


# ---- offloaded weights -----------------------------------------------------------------------------------------------


class NotWaitedFor(WeightStream):
    def will_run(self, layer):
        number = self.numbers.get(id(layer))
        if number is not None:
            self.fetch(number)


class FetchesTooEarly(WeightStream):
    """Overwrites a buffer while a layer may still compute with it."""

    def fetch(self, number):
        if self.holds[number % 2] == number:
            return
        weights = self.weights[number]
        with self.stream:
            self.buffers[number % 2][: weights.nbytes].copy_(weights.bytes, non_blocking=True)
        self.holds[number % 2], self.come[number % 2] = number, self.stream.moment()


class WrongLayer(WeightStream):
    """Thinks that a buffer holds what it held first."""

    def fetch(self, number):
        if number < 2:
            super().fetch(number)


def offloading(count, layers):
    return watched(lengths=(5, 2), counts=(5, 3), layers=layers, offload_layers=count)


@plant("P9-21", offloading(4, 5))
class ComputesWithWhatIsNotThere(OtherParts):
    Weights = NotWaitedFor


@plant("P9-22", offloading(5, 6))
class OverwritesWhatIsUsed(OtherParts):
    Weights = FetchesTooEarly


@plant("P9-23", offloading(3, 3))
class ComputesWithAnotherLayer(OtherParts):
    Weights = WrongLayer


def held(engine_cls, lab):
    engine = StreamServing(engine_cls, lab, deep(lab, layers=6), "probe", "probe", offload_layers=6).engine
    memories = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in engine.model.parameters()}
    return sum(memory.nbytes() for memory in memories.values())


@plant("P9-24", held)
class OffloadsNothing(Engine):
    def prepare_model(self, model):
        return super(Engine, self).prepare_model(model)


def refused(engine_cls, lab):
    try:
        lab.engine(engine_cls, deep(lab, layers=3), num_blocks=20, block_size=4, offload_layers=4)
    except ValueError as error:
        return str(error)
    return "nothing"


@plant("P9-25", refused)
class OffloadsAsManyAsThereAre(Engine):
    class Options(Engine.Options):
        def offloaded(self, layers):
            return list(range(min(layers, self.offload_layers)))
