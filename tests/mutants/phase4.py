"""Mistakes of phase 4: padding on either side, rows that finish, order, parameters, groups."""

import torch

from minfer.core.params import SamplingParams
from minfer.core.sequence import FinishReason
from minfer.phase4 import Engine
from tests.mutants import probes
from tests.mutants.left_padded import LeftPadded, LeftPaddedCache
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=4)
plant = MUTANTS.plant


def batch(family="llama", lengths=(2, 9, 5), counts=(6, 6, 6), prompts=None, asked=None, **options):
    """All that is seen of some prompts in one call: tokens, logits of every step, tokens computed per step."""

    def probe(engine_cls, lab):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model, **options)
        given = prompts or [probes.ids(model, length, number) for number, length in enumerate(lengths)]
        params = asked or [lab.params(count) for count in counts]
        runs = lab.run(engine, given, params)
        return (
            [(run.prompt_ids, run.token_ids, run.logits.round(6).tolist()) for run in runs],
            engine.record.forwarded,
        )

    return probe


# ---- padding ---------------------------------------------------------------------------------------------------------


@plant("P4-01", batch(counts=(1, 1, 1)))
class LastColumn(Engine):
    def prepare(self, sequences):
        step = super().prepare(sequences)
        step.rows = (torch.arange(len(sequences)) + 1) * step.input_ids.shape[1] - 1
        return step


@plant("P4-01", batch(counts=(1, 1, 1)))
class LengthsOfTheSorted(Engine):
    def prepare(self, sequences):
        step = super().prepare(sequences)
        width = step.input_ids.shape[1]
        lengths = sorted(len(sequence.token_ids) - sequence.num_cached for sequence in sequences)
        step.rows = torch.tensor([row * width + length - 1 for row, length in enumerate(lengths)])
        return step


@plant("P4-02", batch("gpt2"))
class PositionIsColumn(LeftPadded):
    """Rotated positions are relative, so only a model with absolute ones shows it."""

    def positions(self, width):
        return torch.arange(self.cache.width)[-width:].expand(len(self.cache.padding), -1)


@plant("P4-02", batch("mha"))
class DecodeAtTheColumn(LeftPadded):
    def positions(self, width):
        if width > 1:
            return super().positions(width)
        return torch.arange(self.cache.width)[-1:].expand(len(self.cache.padding), -1)


@plant("P4-02", batch("mha"))
class OnePositionForAllRows(Engine):
    """Turned as if every row were as long as the longest; kept in the right columns."""

    def prepare(self, sequences):
        step = super().prepare(sequences)
        if step.positions.shape[1] == 1:
            step.positions = step.positions.amax().expand_as(step.positions)
        return step


class Unmasked(LeftPaddedCache):
    def mask(self, window):
        padding, self.padding = self.padding, torch.zeros_like(self.padding)
        seen = super().mask(window)
        self.padding = padding
        return seen.expand(len(padding), -1, -1, -1)


class UnmaskedInDecode(Unmasked):
    def mask(self, window):
        return super().mask(window) if self.new == 1 else LeftPaddedCache.mask(self, window)


@plant("P4-03", batch())
class PaddingSeen(LeftPadded):
    def allocate(self):
        super().allocate()
        self.cache = Unmasked(self.config)


@plant("P4-03", batch())
class PaddingSeenInDecode(LeftPadded):
    def allocate(self):
        super().allocate()
        self.cache = UnmaskedInDecode(self.config)


class MaskedById(LeftPaddedCache):
    def mask(self, window):
        seen = super().mask(window)
        return seen & (self.ids != LeftPadded.pad_id)[:, None, None, :] | torch.eye(seen.shape[-1]).bool()[-self.new :]


@plant("P4-07", batch(prompts=[[7, 3, 3, 8, 3, 9], [3, 5]], counts=(4, 4)))
class PaddingKnownByItsId(LeftPadded):
    def allocate(self):
        super().allocate()
        self.cache = MaskedById(self.config)

    def prepare(self, sequences):
        step = super().prepare(sequences)
        rows = zip(self.cache.padding.flatten().tolist(), sequences, strict=True)
        self.cache.ids = torch.tensor([[self.pad_id] * count + sequence.token_ids for count, sequence in rows])
        return step


@plant("P4-07", batch(prompts=[[7, 0, 0, 8, 0, 9], [5, 0]], counts=(4, 4)))
class PromptsStripped(Engine):
    """Whoever finds the length by counting what is not padding loses what the prompt ends with."""

    def prepare(self, sequences):
        step = super().prepare(sequences)
        width = step.input_ids.shape[1]
        if width > 1:
            kept = torch.where(step.input_ids != 0, torch.arange(width), 0).amax(1)
            step.rows = torch.arange(len(sequences)) * width + kept
        return step


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


@plant("P4-12", batch("mistral", (7, 1, 12), (12, 12, 12)))
class WindowCountsPadding(LeftPadded):
    """Each row's window is counted from the column that the longest prompt starts in."""

    def prepare(self, sequences):
        step = super().prepare(sequences)
        padding, mask = self.cache.padding, self.cache.mask

        def narrow(window):
            seen = mask(window)
            columns = torch.arange(seen.shape[-1])
            near = columns >= self.cache.width - (window or self.cache.width) + padding[:, :, None]
            return seen & near.unsqueeze(1) | torch.eye(len(columns)).bool()[-seen.shape[-2] :]

        self.cache.mask = narrow
        return step

    def forward(self, step):
        logits = super().forward(step)
        del self.cache.mask
        return logits


@plant("P4-12", batch("qwen3", (7, 1, 12), (12, 12, 12)))
class OneWindowForAllLayers(LeftPadded):
    def allocate(self):
        super().allocate()
        for layer in self.cache.layers:
            layer.window = self.config.windows[-1]


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
