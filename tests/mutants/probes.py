"""Probes: what an engine is seen to do. Two engines that do the same have equal outcomes."""

from functools import cache

import numpy as np

from minfer.core.params import SamplingParams


@cache
def logits(family="llama", length=9, steps=6, calls=1):
    """The tokens, and the logits of every step, of some greedy answers in a row."""

    def probe(engine_cls, lab):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model)
        runs = [lab.run(engine, ids(model, length, call), lab.params(steps))[0] for call in range(calls)]
        return [run.token_ids for run in runs], [np.round(run.logits, 6).tolist() for run in runs]

    return probe


def answers(prompts=((5, 6, 7),), answer=(5, 6, 7), pieces=None, **asked):
    """All that a user sees of what comes of a scripted model."""

    def probe(engine_cls, lab):
        tokenizer = lab.tokenizer(pieces or {5: b"one ", 6: b"two ", 7: b"three ", lab.eos: b"</s>"})
        engine = lab.engine(engine_cls, lab.scripted(len(prompts[0]), answer), tokenizer)
        params = lab.params(**{"max_tokens": 4, **asked})
        seen = engine.generate([list(prompt) for prompt in prompts], params)
        return [(c.text, c.token_ids, c.prompt_ids, c.finish_reason, c.stop_reason, c.index) for c in seen]

    return probe


def pieces(answer, spelled, **asked):
    """The pieces of a stream, and how many steps came before the first."""

    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.scripted(1, answer), lab.tokenizer(spelled))
        stream = engine.stream([9], lab.params(len(answer), **asked))
        first = next(stream)
        steps = len(engine.record.forwarded)
        return [first, *stream], steps

    return probe


@cache
def draws(probabilities, seeds=100, **asked):
    """What is drawn from a row of probabilities, seed by seed."""

    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.model())
        params = [SamplingParams(seed=seed, **{"temperature": 1.0, **asked}) for seed in range(seeds)]
        return lab.sampled(engine, np.log(probabilities).tolist(), params)

    return probe


@cache
def greedy(values, **asked):
    """The greedy answer to the prompt [5] of a model whose logits of tokens 5, 6 … are always `values`."""

    def probe(engine_cls, lab):
        import torch

        row = torch.full((lab.sizes.vocab,), -10.0)
        row[5 : 5 + len(values)] = torch.tensor(values)
        return lab.run(lab.engine(engine_cls, lab.constant(row)), [[5]], lab.params(5, **asked))[0].token_ids

    return probe


@cache
def sampled_answer(repeat=2, **asked):
    """Answers, one after another, that are drawn at a high temperature."""

    def probe(engine_cls, lab):
        model = lab.model()
        engine = lab.engine(engine_cls, model)
        params = lab.params(**{"temperature": 2.0, "seed": 1, **asked})
        return [[run.token_ids for run in lab.run(engine, [ids(model, 5)] * 2, params)] for _ in range(repeat)]

    return probe


def loaded(family="llama", steps=3, change=None, look=lambda engine: None, shards=1, **options):
    """The tokens of an engine that was loaded from a folder, and what `look` sees in it."""

    def probe(engine_cls, lab):
        model = lab.model(family)
        folder = model.save(lab.new_folder(), change=change, shards=shards)
        engine = lab.load(engine_cls, folder, **options)
        return lab.run(engine, ids(model, 4), lab.params(steps))[0].token_ids, look(engine)

    return probe


def outcome(probe, engine_cls, lab, errors=Exception):
    """What the probe saw, or which of `errors` it met."""
    try:
        return probe(engine_cls, lab)
    except errors as error:
        return type(error)


def ids(model, length, number=0):
    """A prompt that is the same in every run."""
    return [4 + (7 * i + 3 * i * i + 11 * number) % (model.config.vocab_size - 4) for i in range(length)]
