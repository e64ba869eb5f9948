"""What the tests of the sampler share: requests to sample for, and the sampler's whole distribution from outside."""

import math
from dataclasses import dataclass, field

import torch

from minfer.core.sampling import SamplingParams, sampling


@dataclass
class Request:
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    prompt_ids: list[int] = field(default_factory=lambda: [0])
    output_ids: list[int] = field(default_factory=list)
    end_ids: tuple[int, ...] = ()

    @property
    def num_drawn(self):
        return len(self.output_ids)


def request(seed=0, prompt=(0,), output=(), end=(), **params):
    return Request(SamplingParams(**params), seed, list(prompt), list(output), tuple(end))


def pick(row, *, dtype=torch.float64, **about):
    """The one token that the sampler takes from one row of logits."""
    return int(sampling.sample(torch.tensor([row], dtype=dtype), [request(**about)]))


def sample_at(monkeypatch, row, points, **about):
    """The token that each uniform number in `points` leads to, from one row of logits."""
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "uniform", lambda seed, position: points[seed])
        requests = [request(seed=i, **about) for i in range(len(points))]
        return sampling.sample(row.expand(len(points), -1), requests).tolist()


def reached(monkeypatch, probabilities, **about):
    """The tokens that any of 2000 evenly spread uniform numbers leads to."""
    row = torch.tensor(probabilities, dtype=torch.float64).log()
    return set(sample_at(monkeypatch, row, [i / 2000 for i in range(2000)], temperature=1.0, **about))


def assert_distribution(monkeypatch, row, expected, **about):
    """The sampler's distribution is `expected`: just inside both ends of each token's interval it takes that token."""
    ends = expected.double().cumsum(0)
    assert math.isclose(ends[-1], 1, abs_tol=1e-9)
    tokens = [i for i, probability in enumerate(expected.tolist()) if probability > 1e-8]
    points = [point for i in tokens for point in (float(ends[i] - expected[i]) + 2e-9, float(ends[i]) - 2e-9)]
    assert sample_at(monkeypatch, row, points, **about) == [i for i in tokens for _ in "ab"]
