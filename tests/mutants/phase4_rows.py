"""Mistakes of phase 4 with its rows: which finish, in what order, with whose parameters, in groups, what they hold."""

from minfer.core.params import SamplingParams
from minfer.core.sequence import FinishReason
from minfer.phase4 import Engine
from tests.mutants.left_padded import LeftPadded
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import batch

MUTANTS = Mutants(phase=4)
plant = MUTANTS.plant

# ---- rows that finish ------------------------------------------------------------------------------------------------


def ending(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.scripted(1, [9, 9, 9, 9, lab.eos, 7, 7]), lab.tokenizer({9: b"a", 7: b"b"}))
    runs = lab.run(engine, [[5], [5, 5, 5]], lab.params(8, ignore_eos=False))
    return [(run.token_ids, run.completion.text) for run in runs], len(engine.record.forwarded)


@plant("P4-05", ending)
class FinishedRowsGoOn(Engine):
    def execute(self, sequences):
        running = super().execute(self.cache.owners)
        for sequence in self.cache.owners:
            if sequence not in sequences and len(sequence.token_ids) < sequence.context:
                sequence.text += "b"
        return running


@plant("P4-05", ending)
class AllRowsUntilTheLast(Engine):
    """Every row runs as long as the longest; a row that ends first is not cut."""

    def run(self, sequences):
        ends = {sequence.id: sequence.end_ids for sequence in sequences}
        for sequence in sequences[1:]:
            sequence.end_ids = ()
        for advanced in super().run(sequences):
            yield advanced
            if sequences[0].finished:
                for sequence in sequences[1:]:
                    sequence.end_ids = ends[sequence.id]


@plant("P4-06", batch(counts=(3, 8, 1)))
class UntilAnyIsFinished(Engine):
    def run(self, sequences):
        for advanced in super().run(sequences):
            yield advanced
            if any(sequence.finished for sequence in advanced):
                return


@plant("P4-06", batch(counts=(3, 8, 1)))
class AlwaysToTheLimit(Engine):
    def run(self, sequences):
        yield from super().run(sequences)
        for _ in range(3):
            self.forward(self.whole(sequences[0].prompt_ids, []))


@plant("P4-06", batch(counts=(3, 8, 1)))
class OneAfterAnother(Engine):
    """Not batched at all."""

    def run(self, sequences):
        for sequence in sequences:
            yield from super().run([sequence])


@plant("P4-11", batch(counts=(2, 7, 4)))
class FinishedRowsAreComputed(LeftPadded):
    """The rows stay to the end, and what they give is thrown away."""

    def execute(self, sequences):
        everyone = self.cache.owners if self.cache.width else sequences
        self.wanted = sequences
        return super().execute(everyone)

    def commit(self, sequences, token_ids):
        rows = [row for row, sequence in enumerate(sequences) if not sequence.finished]
        for sequence in sequences:
            if sequence.finished:
                sequence.token_ids.append(9)
        super().commit([sequences[row] for row in rows], token_ids[rows])


# ---- order, parameters, groups ---------------------------------------------------------------------------------------


class Sorted(Engine):
    """Runs the shortest first."""

    def run(self, sequences):
        return super().run(sorted(sequences, key=lambda sequence: sequence.num_prompt))


@plant("P4-08", batch(lengths=(7, 2, 5)))
class AnswersSorted(Sorted):
    def generate(self, prompts, params=None):
        made = super().generate(prompts, params)
        return sorted(made, key=lambda completion: len(completion.prompt_ids))


@plant("P4-08", batch(lengths=(7, 2, 5)))
class LogitsSorted(Engine):
    """Packs by length and gives the logits out in the order asked."""

    def prepare(self, sequences):
        step = super().prepare(sequences)
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].token_ids))
        step.rows = step.rows[order]
        return step


HOT = [SamplingParams(6, temperature=1.5, seed=1), SamplingParams(6), SamplingParams(6, temperature=1.5, seed=2)]


@plant("P4-10", batch(asked=HOT))
class FirstParamsForAll(Engine):
    def sample(self, logits, sequences):
        own = [sequence.params for sequence in sequences]
        for sequence in sequences:
            sequence.params = sequences[0].params
        drawn = super().sample(logits, sequences)
        for sequence, params in zip(sequences, own, strict=True):
            sequence.params = params
        return drawn


@plant("P4-10", batch(asked=HOT))
class OneSeedForTheBatch(Engine):
    def sample(self, logits, sequences):
        for sequence in sequences:
            sequence.seed = sequences[0].seed
        return super().sample(logits, sequences)


@plant("P4-13", batch(lengths=(3, 14, 8), asked=HOT))
class RowsTakenForRequests(Engine):
    """Draws depend on the row."""

    def sample(self, logits, sequences):
        for row, sequence in enumerate(sequences):
            sequence.seed += row
        drawn = super().sample(logits, sequences)
        for row, sequence in enumerate(sequences):
            sequence.seed -= row
        return drawn


@plant("P4-14", batch(max_batch=2))
class LimitIgnored(Engine):
    def run(self, sequences):
        options, self.options = self.options, type(self.options)(device="cpu")
        yield from super().run(sequences)
        self.options = options


@plant("P4-14", batch(lengths=(9, 12, 10), max_batch=2))
class LastGroupForgotten(Engine):
    def run(self, sequences):
        whole = len(sequences) // self.options.max_batch * self.options.max_batch
        yield from super().run(sequences[: whole or len(sequences)])
        for sequence in sequences:
            sequence.finish(FinishReason.LENGTH, self.device.clock())


def usage(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model())
    sequences = engine.sequences([[5, 6, 7], [8]], [lab.params(2), lab.params(3)])
    return [(engine.kv_usage().held, engine.kv_usage().unused) for _ in engine.run(sequences)]


@plant("P4-15", usage)
class PaddingCountsAsHeld(Engine):
    def kv_usage(self):
        width = max(sequence.num_cached for sequence in self.owners)
        return super().kv_usage()._replace(held=width * len(self.owners))


@plant("P4-15", usage)
class FinishedCountAsHeld(Engine):
    def kv_usage(self):
        return super().kv_usage()._replace(held=sum(sequence.num_cached for sequence in self.owners))
