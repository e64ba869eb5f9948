"""More mistakes of phase 11: bytes between ranks that are not all or not this rank's, counters of another moment."""

from functools import cache

from minfer.phase10 import Communication
from minfer.phase10.ranks import Ranks
from minfer.phase11 import Engine, profile
from minfer.phase11.tracks import tracks
from tests.mutants import probes
from tests.mutants.planting import Mutants
from tests.phase10.dealt import Dealt
from tests.phase11.measured import Measured
from tests.phase11.test_profiles import counters, ranges

MUTANTS = Mutants(phase=11)
plant = MUTANTS.plant


@cache
def traffic(tensor, pipeline):
    """What the log says of a prompt and two decodes, dealt."""

    def probe(engine_cls, lab):
        with Dealt(engine_cls, lab, "llama", tensor, pipeline) as dealt:
            lab.run(dealt.engine, [probes.ids(dealt.model, 9)], lab.params(3))
            lines = dealt.engine.step_lines()
        return [(line["comm_bytes"], line["comm_counted"], line["flops"]) for line in lines]

    return probe


class OnlySums(Ranks):
    @property
    def nbytes(self):
        return self.tensor.nbytes


class WithoutAnnouncements(Ranks):
    @property
    def nbytes(self):
        return self.tensor.nbytes + self.world.nbytes


class OtherCount(Engine):
    Ranks: type = Ranks

    def allocate(self):
        super().allocate()
        if self.ranks:
            self.ranks.__class__ = self.Ranks


@plant("P11-38", traffic(2, 2))
class CountsOnlySums(OtherCount):
    Ranks = OnlySums


@plant("P11-38", traffic(2, 1))
class CountsNoAnnouncements(OtherCount):
    Ranks = WithoutAnnouncements


class OtherCost(Engine):
    def allocate(self):
        super().allocate()
        if self.ranks:
            self.change(self.observer.cost, self.ranks.plan)


@plant("P11-38", traffic(2, 1))
class SumsAllRowsToTheEnd(OtherCost):
    def change(self, cost, plan):
        tokens, rows = cost.communication
        behind = 2 * 8 * plan.whole.hidden_size if plan.place.is_last else 0
        cost.communication = Communication(tokens + behind, rows - behind)


@plant("P11-38", traffic(1, 2))
class GivesNothingOn(OtherCost):
    def change(self, cost, plan):
        cost.communication = Communication(0, cost.communication.per_row)


@plant("P11-38", traffic(2, 1))
class HeadOfTheWhole(OtherCost):
    def change(self, cost, plan):
        cost.per_row = 2 * plan.whole.vocab_size * plan.whole.hidden_size


def counted(engine_cls, lab):
    """The values of the counter tracks, and which of them change where a step begins."""
    path = lab.new_folder() / "trace.json"
    measured = Measured(engine_cls, lab, [1.0], max_batch=2)
    measured.run(2)
    measured.engine.profile([measured.prompt] * 3, [lab.params(count) for count in (6, 3, 2)], trace=path)
    starts = {round(start) for name, start, _ in ranges(path) if name == "step"}
    return {name: [(round(ts) in starts, values) for ts, values in track] for name, track in counters(path).items()}


class OtherTracks(Engine):
    def profile(self, *args, **more):
        profile.tracks = self.tracks
        try:
            return super().profile(*args, **more)
        finally:
            profile.tracks = tracks


@plant("P11-11", counted)
class CountersOfTheStepBefore(OtherTracks):
    def tracks(self, records, turns, log):
        return tracks(records, [turn._replace(over=[number - 1 for number in turn.over]) for turn in turns], log)


@plant("P11-11", counted)
class AllWhenTheStepBegins(OtherTracks):
    def tracks(self, records, turns, log):
        starts = {record.end_ns(): record.start_ns() for record in records if record.name() == "minfer.step"}
        return [one._replace(ns=starts.get(one.ns, one.ns)) for one in tracks(records, turns, log)]


@plant("P11-11", counted)
class ForgetsWhoWaits(OtherTracks):
    def tracks(self, records, turns, log):
        for one in tracks(records, turns, log):
            yield one._replace(values={name: value for name, value in one.values.items() if name != "waiting"})
