"""Latency: how long a request took, by the definitions that the whole project uses; and percentiles.

Of a request that arrived at a and whose n output tokens were known at t₁ … tₙ, in seconds of one monotonic clock:

    TTFT = t₁ − a                    time to first token; waiting in the queue is in it
    TPOT = (tₙ − t₁)/(n − 1)         time per output token after the first; none for n = 1
    ITL  = t₂ − t₁, …, tₙ − tₙ₋₁     inter-token latencies; the first token's time is not one of them
    E2E  = tₙ − a                    end to end

Tools differ in these words: vLLM's TPOT and ITL are the ones here; GuideLLM's TPOT has the first token in it.
"""

import math
from collections.abc import Sequence as Items
from itertools import pairwise

import numpy as np


def ttft(arrived: float, tokens: Items[float]) -> float:
    """t₁ − a in seconds; there must be a token."""
    return tokens[0] - arrived


def tpot(tokens: Items[float]) -> float | None:
    """(tₙ − t₁)/(n − 1) in seconds; None for fewer than two tokens, which have no gap."""
    return (tokens[-1] - tokens[0]) / (len(tokens) - 1) if len(tokens) > 1 else None


def gaps(tokens: Items[float]) -> list[float]:
    """tᵢ₊₁ − tᵢ in seconds: one less than there are tokens."""
    return [later - earlier for earlier, later in pairwise(tokens)]


def e2e(arrived: float, tokens: Items[float]) -> float:
    """tₙ − a in seconds; there must be a token."""
    return tokens[-1] - arrived


def percentile(values: Items[float], percent: float) -> float:
    """The value that `percent` % of the values do not exceed, interpolated linearly between neighbours as by numpy.

    A percentile that fewer than one value lies beyond, n · (1 − percent/100) < 1, would be made up: the maximum is
    given instead. So P95 needs 20 values and P99 needs 100 to be anything else. NaN without values.
    """
    if not len(values):
        return math.nan
    beyond = len(values) * (100 - percent)
    return float(np.percentile(values, percent)) if beyond >= 100 else float(max(values))
