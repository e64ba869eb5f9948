"""Quality: what a quantised engine says beside the unquantised one, on a text and on the answers to some prompts."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from math import exp
from typing import Any

import torch
from torch import Tensor

from minfer.core.errors import OptionsError
from minfer.core.params import SamplingParams
from minfer.phase6.conversion import quantized_layers

CHUNK = 256
"""Tokens that are scored in one forward: logits are a vocabulary wide."""


@dataclass(frozen=True)
class Sample:
    """What engines are compared on: chunks of a text, whose tokens but the first are scored, and prompts."""

    chunks: list[list[int]]
    prompts: list[list[int]]
    answer: int

    @classmethod
    def of(cls, engine: Any, text: str, tokens: int, prompts: int = 8, prompt: int = 24, answer: int = 32) -> "Sample":
        """The first `tokens` tokens of `text`, in chunks; `prompts` beginnings of chunks of `prompt` tokens.

        Raises `OptionsError` for a text of fewer than two tokens.
        """
        ids = engine.reader.encode(text)[:tokens]
        width = min(CHUNK, engine.context)
        chunks = [ids[start : start + width] for start in range(0, len(ids), width)]
        chunks = [chunk for chunk in chunks if len(chunk) > 1]
        if not chunks:
            raise OptionsError(f"{len(ids)} tokens of text: at least 2 are needed to score one")
        answer = min(answer, engine.context // 2)
        return cls(chunks, [chunk[: min(prompt, engine.context - answer)] for chunk in chunks[:prompts]], answer)

    @property
    def scored(self) -> int:
        """How many tokens have a probability."""
        return sum(len(chunk) - 1 for chunk in self.chunks)


@dataclass(frozen=True)
class Quality:
    """`divergence`: mean over the scored positions of KL(unquantised || quantised), in nats. `match`: tokens of the
    greedy answers before the first that differs, of `answer`, on average. `nbytes` of the quantised weights."""

    perplexity: float
    divergence: float
    match: float
    nbytes: int
    parameters: int
    kernels: tuple[str, ...]


def perplexity(engine: Any, sample: Sample) -> float:
    """exp of the mean negative log-probability of each token after those before it in its chunk."""
    lost = [-_of_next(log_probabilities(engine, chunk), chunk).sum().item() for chunk in sample.chunks]
    return exp(sum(lost) / sample.scored)


def compare(engine: Any, reference: Any, sample: Sample, done: Callable[[float], None]) -> Quality:
    """Both engines on the sample; `done` hears how far it is."""
    lost = diverged = 0.0
    for number, chunk in enumerate(sample.chunks):
        ours, theirs = log_probabilities(engine, chunk), log_probabilities(reference, chunk)
        lost -= _of_next(ours, chunk).sum().item()
        diverged += divergence(theirs, ours).sum().item()
        done((number + 1) / (len(sample.chunks) + 1))
    layers = quantized_layers(engine.model).values()
    matches = [common(*pair) for pair in zip(answers(engine, sample), answers(reference, sample), strict=True)]
    done(1.0)
    return Quality(
        perplexity=exp(lost / sample.scored),
        divergence=diverged / sample.scored,
        match=sum(matches) / len(matches),
        nbytes=sum(layer.nbytes for layer in layers),
        parameters=sum(layer.out_features * layer.in_features for layer in layers),
        kernels=tuple(engine.kernels),
    )


@torch.inference_mode()
def log_probabilities(engine: Any, chunk: list[int]) -> Tensor:
    """`(len(chunk) - 1, vocab)` in float32 at least: of what follows each token but the last."""
    batch = engine.whole(chunk, [])
    batch.rows = batch.positions[:-1]
    logits = engine.forward(batch)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def divergence(reference: Tensor, ours: Tensor) -> Tensor:
    """KL(reference || ours) of log-probabilities `(rows, vocab)`, per row, in nats."""
    return (reference.exp() * (reference - ours)).sum(-1)


def answers(engine: Any, sample: Sample) -> list[list[int]]:
    """Greedy answers to the prompts."""
    params = SamplingParams(max_tokens=sample.answer, ignore_eos=True)
    return [completion.token_ids for completion in engine.generate(sample.prompts, params)]


def common(one: list[int], other: list[int]) -> int:
    """How many tokens two answers begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _of_next(log_probabilities: Tensor, chunk: list[int]) -> Tensor:
    following = torch.tensor(chunk[1:], device=log_probabilities.device)
    return log_probabilities.gather(-1, following[:, None])
