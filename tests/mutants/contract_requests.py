"""Mistakes that any phase can make with requests, planted in phase 3: order, streams, errors, log-probabilities."""

import dataclasses

import torch

from minfer.core.errors import RequestError
from minfer.core.sampling.logprobs import prompt_logprobs
from minfer.phase3 import Engine
from tests.mutants import probes
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=3)
plant = MUTANTS.plant


@plant("P0-26", probes.sampled_answer(n=3))
class OneSeedForAllSamples(Engine):
    def sequences(self, *prompts, **named):
        made = super().sequences(*prompts, **named)
        for sequence in made:
            if sequence.params.seed is not None:
                sequence.seed = sequence.params.seed
        return made


@plant("P0-26", probes.answers(prompts=((5, 6), (8, 9)), n=2))
class SamplesNotInARow(Engine):
    def sequences(self, *prompts, **named):
        return sorted(super().sequences(*prompts, **named), key=lambda sequence: sequence.index)


LENGTHS = ((5, 6, 7), (8,), (9, 10))


@plant(
    "P0-27", lambda cls, lab: [c.prompt_ids for c in lab.engine(cls, lab.model()).generate([list(p) for p in LENGTHS])]
)
class SortedByLength(Engine):
    def sequences(self, *prompts, **named):
        return sorted(super().sequences(*prompts, **named), key=lambda sequence: sequence.num_prompt)


def own_params(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model())
    params = [lab.params(2), lab.params(4, temperature=2.0, seed=1)]
    return [completion.token_ids for completion in engine.generate([[5, 6], [7, 8]], params)]


@plant("P0-27", own_params)
class FirstParamsForAll(Engine):
    def sequences(self, prompts, params=None):
        return super().sequences(prompts, params[0] if isinstance(params, list) and len(params) > 1 else params)


SMILE = {5: b"caf\xc3", 6: b"\xa9 ", 7: b"\xf0\x9f", 8: b"\x99\x82"}


@plant("P0-24", probes.pieces((5, 6, 7, 8), SMILE))
class StreamedAtTheEnd(Engine):
    def stream(self, prompt, params=None):
        yield self.generate([prompt], params)[0].text


@plant("P0-24", probes.pieces((5, 6, 7, 8), SMILE))
class EachTokenDecodedAlone(Engine):
    def stream(self, prompt, params=None):
        (sequence,) = self.sequences([prompt], params)
        for _ in self.run([sequence]):
            yield self.tokenizer.decode(sequence.output_ids[-1:])


@plant("P0-24", probes.pieces((5, 6, 7), SMILE))
class HeldBackTextLost(Engine):
    def _pieces(self, sequence):
        for _ in self.run([sequence]):
            if not sequence.finished and (piece := sequence.take_text()):
                yield piece


class NeverReleasedEarly(Engine):
    def run(self, sequences):
        for sequence in sequences:
            self.admit([sequence])
            while not sequence.finished:
                yield self.execute([sequence])
            self.release(sequence)


def after_a_closed_stream(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), lab.tokenizer())
    stream = engine.stream([5, 6])
    next(stream)
    stream.close()
    return engine.record.made[0].finished


plant("P0-25", after_a_closed_stream)(NeverReleasedEarly)


@plant("P0-28", lambda cls, lab: (e := lab.engine(cls, lab.model())) and (_try(e, [[5], []]), e.record.forwarded))
class ChecksAsItGoes(Engine):
    def generate(self, prompts, params=None):
        if not isinstance(prompts[0], list) or isinstance(params, list):
            return super().generate(prompts, params)
        return [completion for prompt in prompts for completion in Engine.generate(self, [prompt], params)]


@plant("P0-28", lambda cls, lab: _try(lab.engine(cls, lab.model()), [[5], [-1]]))
class NegativeIdsWrapped(Engine):
    def sequences(self, prompts, params=None):
        if isinstance(prompts, list) and all(isinstance(prompt, list) for prompt in prompts):
            prompts = [[token_id % self.config.vocab_size for token_id in prompt] for prompt in prompts]
        return super().sequences(prompts, params)


def _try(engine, prompts):
    try:
        return engine.generate(prompts)
    except RequestError as error:
        return str(error)


def judged(engine_cls, lab):
    params = lab.params(3, temperature=1.5, seed=1, logprobs=2, prompt_logprobs=2)
    (made,) = lab.engine(engine_cls, lab.model()).generate([5, 6, 7], params)
    return [one and round(one.logprob, 6) for one in [*made.prompt_logprobs, *made.logprobs]]


@plant("P0-29", judged)
class LogprobsAfterTemperature(Engine):
    def sample(self, logits, sequences):
        temperatures = [sequence.params.temperature or 1.0 for sequence in sequences]
        cooled = logits / torch.tensor(temperatures, dtype=logits.dtype)[:, None]
        for sequence, temperature in zip(sequences, temperatures, strict=True):
            sequence.params = dataclasses.replace(sequence.params, temperature=1.0 if temperature else 0.0)
        drawn = super().sample(cooled, sequences)
        for sequence, temperature in zip(sequences, temperatures, strict=True):
            sequence.params = dataclasses.replace(sequence.params, temperature=temperature)
        return drawn


@plant("P0-29", judged)
class PromptJudgedByItself(Engine):
    def score(self, sequence):
        with torch.inference_mode():
            batch = self.whole(sequence.prompt_ids, [])
            batch.rows = batch.positions[1:]
            logits = self.forward(batch)
            sequence.prompt_logprobs = prompt_logprobs(torch.cat([logits, logits[:1]]), sequence)


def after_an_error(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.scripted(1, [5, 6, 7], fail_at=1))
    try:
        engine.generate([9], lab.params(3))
    except ArithmeticError:
        return engine.generate([9], lab.params(3))[0].token_ids
    return "no error"


@plant("P0-30", after_an_error, crashes=True)
class NothingReleasedAfterAnError(NeverReleasedEarly):
    pass


@plant("P0-30", after_an_error)
class ErrorsSwallowed(Engine):
    def run(self, sequences):
        try:
            yield from super().run(sequences)
        except ArithmeticError:
            return


def drawn_from_nan(engine_cls, lab):
    nothing = torch.full((lab.sizes.vocab,), float("nan"))
    return lab.engine(engine_cls, lab.constant(nothing)).generate([5], lab.params(2))[0].token_ids


@plant("P0-30", drawn_from_nan)
class NanTakenForAToken(Engine):
    def sample(self, logits, sequences):
        return super().sample(torch.nan_to_num(logits), sequences)


def times(engine_cls, lab):
    (made,) = lab.engine(engine_cls, lab.model()).generate([5, 6], lab.params(3))
    stamps = made.timestamps
    known = [stamps.arrived, stamps.scheduled, *stamps.tokens, stamps.finished]
    return [time is not None for time in known], known == sorted(time or 0 for time in known)


@plant("P0-31", times)
class NeverScheduled(Engine):
    def start(self, sequence):
        super().start(sequence)
        sequence.timestamps.scheduled = None


@plant("P0-31", times)
class TokensAtArrival(Engine):
    def commit(self, sequences, token_ids):
        super().commit(sequences, token_ids)
        for sequence in sequences:
            sequence.timestamps.tokens[-1] = sequence.timestamps.arrived - 1
