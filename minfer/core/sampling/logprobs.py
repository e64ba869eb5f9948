"""Log-probabilities that requests asked for: raw, before penalties and temperature."""

from collections.abc import Sequence as Items

from torch import Tensor

from minfer.core.sampling.sampling import TokenLogprob, token_logprobs
from minfer.core.sequence import Sequence


def record_logprobs(logits: Tensor, token_ids: Tensor, sequences: Items[Sequence]) -> None:
    """Append the drawn tokens' log-probabilities to the sequences that want them: logits `(R, V)`, ids `(R,)`."""
    rows = [row for row, sequence in enumerate(sequences) if sequence.params.logprobs is not None]
    if not rows:
        return
    counts = [sequences[row].params.logprobs or 0 for row in rows]
    found = token_logprobs(logits[rows], token_ids[rows].tolist(), counts)
    for row, logprob in zip(rows, found, strict=True):
        sequences[row].logprobs.append(logprob)


def prompt_logprobs(logits: Tensor, sequence: Sequence) -> list[TokenLogprob | None]:
    """One per prompt token given those before it; None for the first, which nothing precedes. logits `(T, V)`."""
    rest = sequence.prompt_ids[1:]
    counts = [sequence.params.prompt_logprobs or 0] * len(rest)
    return [None, *token_logprobs(logits[: len(rest)], rest, counts)]
