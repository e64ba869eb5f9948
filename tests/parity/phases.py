"""The engines of all phases that exist, and what one of them answers."""

import importlib

import torch

from minfer import NEWEST_PHASE
from minfer.core.sampling import SamplingParams
from tests.parity.answer import Answer

PHASES = list(range(1, NEWEST_PHASE + 1))


def engine_class(phase: int):
    """The `Engine` of that phase."""
    return importlib.import_module(f"minfer.phase{phase}").Engine


def load(phase: int, folder, **options):
    """The engine of that phase for a folder, on the CPU."""
    return engine_class(phase).load(str(folder), device="cpu", **options)


def answers(engine, prompts: list[list[int]], max_tokens: list[int | None], **params) -> list[Answer]:
    """Greedy answers to all prompts in one call, and the logits of every step as the sampler saw them."""
    steps: dict[int, list[torch.Tensor]] = {}
    sample = engine.sample

    def recording(logits, sequences):
        for row, sequence in zip(logits, sequences, strict=True):
            steps.setdefault(sequence.id, []).append(row.clone())
        return sample(logits, sequences)

    engine.sample = recording
    made = engine.generate(prompts, [SamplingParams(max_tokens=most, **params) for most in max_tokens])
    del engine.sample
    rows = [torch.stack(steps[number]) for number in sorted(steps)]  # sequences are numbered in the order asked
    # a step that was launched before the one before it had ended an answer draws a token for nobody
    return [Answer(one.token_ids, logits[: len(one.token_ids)]) for one, logits in zip(made, rows, strict=True)]
