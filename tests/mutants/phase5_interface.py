"""Mistakes of phase 5 that a user meets: submit, step and abort, company, streams."""

from dataclasses import replace

from minfer.core.sequence import Status
from minfer.phase5 import Engine
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import HOT, served

MUTANTS = Mutants(phase=5)
plant = MUTANTS.plant

# ---- the interface ---------------------------------------------------------------------------------------------------


def submitted(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), block_size=4, num_blocks=8)
    sequence = engine.submit([5, 6], lab.params(3))
    return sequence.status, engine.record.forwarded, engine.abort(-1), engine.step() == [sequence]


@plant("P5-22", submitted)
class SubmitRunsToTheEnd(Engine):
    def submit(self, prompt, params=None):
        sequence = super().submit(prompt, params)
        while not sequence.finished:
            self.step()
        return sequence


@plant("P5-22", submitted, crashes=True)
class UnknownIdsRaise(Engine):
    def abort(self, request_id):
        if request_id not in self.scheduler.tables:
            raise KeyError(request_id)
        return super().abort(request_id)


@plant("P5-22", submitted)
class StepSaysNothing(Engine):
    def step(self):
        return [sequence for sequence in super().step() if sequence.finished]


def for_nothing(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), block_size=4, num_blocks=20)
    sequence = engine.submit([5, 6], lab.params(0))
    engine.step()
    return sequence.output_ids, engine.record.forwarded


@plant("P5-22", for_nothing)
class OneTokenForNothing(Engine):
    def sequences(self, prompts, params=None):
        made = super().sequences(prompts, params)
        for sequence in (one for one in made if one.finished):
            sequence.params = replace(sequence.params, max_tokens=1)
            sequence.status, sequence.finish_reason = Status.WAITING, None
        return made


def larger_than_the_pool(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), block_size=4, num_blocks=2)
    sequence = engine.submit([5] * 12, lab.params(3))
    for _ in range(5):
        engine.step()
    return sequence.status


@plant("P5-22", larger_than_the_pool)
class NeverRefuses(Engine):
    def sequences(self, prompts, params=None):
        cache, self.cache = self.cache, type("Endless", (), {"num_blocks": 10**9})
        made = super().sequences(prompts, params)
        self.cache = cache
        return made


@plant("P5-23", served(lengths=(9, 4, 6), asked=HOT))
class DrawsByRow(Engine):
    def sample(self, logits, sequences):
        for row, sequence in enumerate(sequences):
            sequence.seed += row
        drawn = super().sample(logits, sequences)
        for row, sequence in enumerate(sequences):
            sequence.seed -= row
        return drawn


@plant("P5-23", served("mistral", (12, 3, 9), (4, 4, 4), chunk_size=11))
class WindowsInDecodesOnly(Engine):
    def allocate(self):
        super().allocate()
        segment = self.cache.segment

        def unwindowed(*args):
            made = segment(*args)
            wide = type(self.cache).segment
            windows, self.cache.config = self.cache.config, _without_windows(self.cache.config)
            mask = wide(self.cache, *args).masks[None]
            self.cache.config = windows
            made.masks = dict.fromkeys(made.masks, mask)
            return made

        self.cache.segment = unwindowed


def _without_windows(config):
    return type(config)(**{**vars(config), "windows": (None,) * config.num_layers})


def two_streams(*counts):
    """A piece of the first stream, all of the second, then the rest of the first."""

    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.model(), lab.tokenizer(), block_size=4, num_blocks=20)
        first, second = (engine.stream([5, 6], lab.params(count)) for count in counts)
        head = next(first)
        return "".join(second), head + "".join(first)

    return probe


@plant("P5-24", two_streams(8, 3))
class OneStreamEndsAll(Engine):
    def run(self, sequences):
        yield from super().run(sequences)
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self.abort(sequence.id)


@plant("P5-24", two_streams(4, 8))
class OnlyOwnStepsAreShown(Engine):
    """Gives out the text of the steps that it made itself."""

    def _pieces(self, sequence):
        for _ in self.run([sequence]):
            if sequence in self.scheduled and (piece := sequence.take_text()):
                yield piece
            elif sequence.finished:
                return
