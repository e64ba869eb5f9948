"""From logits to token ids: penalties, filters, the draw; and the log-probabilities that were asked for."""

from minfer.core.sampling.sampling import (
    INVALID,
    SamplingParams,
    TokenLogprob,
    check_sampled,
    needs_history,
    sample,
    token_logprobs,
    uniform,
)

__all__ = [
    "INVALID",
    "SamplingParams",
    "TokenLogprob",
    "check_sampled",
    "needs_history",
    "sample",
    "token_logprobs",
    "uniform",
]
