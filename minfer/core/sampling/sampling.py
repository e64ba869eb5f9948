"""From logits to token ids, and to log-probabilities.

A draw is the inverse of the cumulative distribution, in vocabulary order, at one uniform number which is a pure
function of (the sequence's seed, the token's position). No generator has a state, so neither the batch, nor the
order of work, nor a preemption, nor the device can change a sample.

`sample` reads nothing back from the device: what the host knows (parameters, ids) goes there, and ids stay there.
Each filter runs only on the rows that ask for it; a batch of plain greedy rows costs one reduction.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from minfer.core.errors import MinferError
from minfer.core.params import SamplingParams
from minfer.core.sampling.filters import min_p_mask, top_k_mask, top_p_mask
from minfer.core.upload import upload

INVALID = -1  # the "id" of a row whose logits hold NaN or +inf: found on the device, reported once the ids are read


class Samplable(Protocol):
    """What the sampler needs to know of a sequence."""

    @property
    def params(self) -> SamplingParams:
        """What its request asked for."""

    @property
    def seed(self) -> int:
        """Where its draws start from: no two of a request's `n` sequences share it."""

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's tokens."""

    @property
    def output_ids(self) -> list[int]:
        """The tokens generated so far, as far as the host knows them."""

    @property
    def num_drawn(self) -> int:
        """How many were drawn so far, known or not."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that would end it: not to be chosen before `min_tokens`."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), of 53 random bits: a pure function of `seed` and `position`, the same on every machine."""
    digest = hashlib.blake2b(f"{seed},{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def sample(logits: Tensor, sequences: Sequence[Samplable]) -> Tensor:
    """The next token of each sequence: logits (R, V) of any float dtype -> ids (R,) int64, on the same device.

    Row r is `sequences[r]`'s, by its own parameters. Computed in float32 at least. Ties go to the lower id. A row
    with NaN or +inf gives `INVALID`: `check_sampled` raises once the ids are on the host. A row that is -inf
    everywhere (all tokens banned) gives id 0.
    """
    if logits.shape[0] != len(sequences):
        raise ValueError(f"logits has {logits.shape[0]} rows for {len(sequences)} sequences: one row each is needed")
    rows = [row for row, sequence in enumerate(sequences) if not _is_plain(sequence)]
    if not rows:
        return _likeliest(logits)[0]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if len(rows) == len(sequences):
        return _choose(logits.to(dtype, copy=True), sequences)
    ids = _likeliest(logits)[0]
    index = upload(rows, logits.device)
    ids[index] = _choose(logits.index_select(0, index).to(dtype), [sequences[row] for row in rows])
    return ids


def check_sampled(ids: Iterable[int]) -> None:
    """Raise `MinferError` if an id that `sample` returned, now on the host, is `INVALID`."""
    for row, token_id in enumerate(ids):
        if token_id == INVALID:
            raise MinferError(
                f"the logits of row {row} hold NaN or infinity: the weights are damaged, or too large for this dtype: "
                "load them with dtype float32 or bfloat16"
            )


def needs_history(params: SamplingParams) -> bool:
    """Whether a draw depends on which tokens were drawn before it, which the host must know then."""
    return params.repetition_penalty != 1 or bool(params.presence_penalty or params.frequency_penalty)


def _is_plain(sequence: Samplable) -> bool:
    params = sequence.params
    return (
        params.is_greedy
        and not needs_history(params)
        and not params.logit_bias
        and sequence.num_drawn >= params.min_tokens
    )


def _likeliest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row the id of its maximum (the lowest of equals, or `INVALID`) and the maximum. (R,), (R,)"""
    best, ids = scores.max(-1)
    return torch.where(best < math.inf, ids, INVALID), best  # max passes NaN on, and NaN compares as false


def _choose(scores: Tensor, sequences: Sequence[Samplable]) -> Tensor:
    """Ids (R,) by penalties, bias and bans, then greedily or by a draw. Overwrites `scores` (R, V)."""
    _repel_repeats(scores, sequences)
    _add(scores, [_additions(sequence) for sequence in sequences])
    greedy, best = _likeliest(scores)
    if all(sequence.params.is_greedy for sequence in sequences):
        return greedy
    weights = _weights(scores, best, [sequence.params for sequence in sequences])
    cumulative = weights.double().cumsum_(-1)
    total = cumulative[:, -1:]
    points = [uniform(s.seed, len(s.prompt_ids) + s.num_drawn) for s in sequences]
    drawn = torch.searchsorted(cumulative, _column(points, cumulative) * total, right=True)
    return torch.where(total > 0, drawn, greedy.unsqueeze(1)).squeeze(1)  # no weight, or NaN: nothing to draw from


def _repel_repeats(scores: Tensor, sequences: Sequence[Samplable]) -> None:
    """The repetition penalty (CTRL, arXiv 1909.05858): divides a seen token's logit, multiplies a negative one."""
    seen = {
        row: dict.fromkeys([*sequence.prompt_ids, *sequence.output_ids], sequence.params.repetition_penalty)
        for row, sequence in enumerate(sequences)
        if sequence.params.repetition_penalty != 1
    }
    if seen:
        rows, ids, penalties = _entries(seen, scores)
        old = scores[rows, ids]
        scores[rows, ids] = torch.where(old > 0, old / penalties, old * penalties)


def _additions(sequence: Samplable) -> dict[int, float]:
    """What is added to which logit: bias, less presence and frequency penalties; -inf before `min_tokens`."""
    params = sequence.params
    added = dict(params.logit_bias)
    if params.presence_penalty or params.frequency_penalty:
        for token_id, count in Counter(sequence.output_ids).items():
            penalty = params.presence_penalty + params.frequency_penalty * count
            added[token_id] = added.get(token_id, 0.0) - penalty
    if sequence.num_drawn < params.min_tokens:
        added.update(dict.fromkeys(sequence.end_ids, -math.inf))
    return added


def _add(scores: Tensor, additions: Sequence[dict[int, float]]) -> None:
    edited = {row: added for row, added in enumerate(additions) if added}
    if edited:
        rows, ids, values = _entries(edited, scores)
        scores[rows, ids] += values


def _weights(scores: Tensor, best: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Probabilities relative to the likeliest token's, 0 for what the filters drop. (R, V), in the place of `scores`.

    Subtracting the maximum first keeps any temperature finite: the likeliest token's exponent is exactly 0. A row
    of temperature 0 becomes 0/0 there, and one that is -inf everywhere inf - inf: NaN, so neither is drawn from.
    """
    vocab_size = scores.shape[1]
    top_k = {row: one.top_k for row, one in enumerate(params) if 0 < one.top_k < vocab_size}
    top_p = {row: one.top_p for row, one in enumerate(params) if one.top_p < 1}
    if top_k:  # by the scores: a high temperature makes different scores equal weights
        k_rows = upload(list(top_k), scores.device)
        k_mask = top_k_mask(scores.index_select(0, k_rows), list(top_k.values()))
    temperature = _column([min(one.temperature, 1e30) for one in params], scores)  # float32 holds no more than 3e38
    weights = scores.sub_(best.unsqueeze(1)).div_(temperature).exp_()
    if top_k:
        weights.index_copy_(0, k_rows, k_mask.mul_(weights.index_select(0, k_rows)))
    if top_p:
        p_rows = upload(list(top_p), scores.device)
        kept = weights.index_select(0, p_rows)
        kept.mul_(top_p_mask(kept, _column(list(top_p.values()), scores)))
        weights.index_copy_(0, p_rows, kept)
    if any(one.min_p for one in params):
        weights.mul_(min_p_mask(weights, _column([one.min_p for one in params], scores)))
    return weights


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """Host numbers as a column (R, 1) of `like`'s dtype and device."""
    return torch.tensor(values, dtype=like.dtype).unsqueeze(1).to(like.device, non_blocking=True)


def _entries(table: dict[int, dict[int, float]], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`table[row][id] = value` as rows, ids and values, one of each per entry, on `like`'s device."""
    rows = [row for row, entries in table.items() for _ in entries]
    ids = [token_id for entries in table.values() for token_id in entries]
    values = [value for entries in table.values() for value in entries.values()]
    return upload(rows, like.device), upload(ids, like.device), _column(values, like).squeeze(1)


@dataclass(frozen=True)
class TokenLogprob:
    """One token's log-probability under the raw logits (before penalties and temperature), natural logarithm.

    `rank` is 1 for the likeliest; of equal tokens the lower id comes first. `top` holds the likeliest tokens as
    (id, logprob), at most as many as asked for: tokens of probability 0 are left out.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: Tensor, ids: Sequence[int], k: Sequence[int]) -> list[TokenLogprob]:
    """The log-probability of `ids[r]` in row r of logits (R, V), with its `k[r]` likeliest tokens. Reads the device.

    Raises `MinferError` for an id that is `INVALID`.
    """
    check_sampled(ids)
    parts = range(0, len(ids), 64)  # rows at a time: the float32 copy of a long prompt's logits stays small
    return [one for i in parts for one in _token_logprobs(logits[i : i + 64], ids[i : i + 64], k[i : i + 64])]


def _token_logprobs(logits: Tensor, ids: Sequence[int], k: Sequence[int]) -> list[TokenLogprob]:
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    vocab_size = scores.shape[1]
    norm = scores.logsumexp(-1, keepdim=True)
    chosen = upload(ids, scores.device).unsqueeze(1)
    own = scores.gather(1, chosen)
    before = torch.arange(vocab_size, device=scores.device) < chosen
    rank = ((scores > own) | ((scores == own) & before)).sum(-1) + 1
    width = min(max(k), vocab_size)
    kept = top_k_mask(scores, [min(max(one, 1), vocab_size) for one in k])
    values, top_ids = scores.masked_fill(kept == 0, -math.inf).topk(width)
    tops = zip(top_ids.tolist(), (values - norm).tolist(), strict=True)
    logprobs = (own - norm).squeeze(1).tolist()
    return [
        TokenLogprob(token_id, logprob, place, _ordered(*top, count))
        for token_id, logprob, place, top, count in zip(ids, logprobs, rank.tolist(), tops, k, strict=True)
    ]


def _ordered(ids: list[int], logprobs: list[float], count: int) -> tuple[tuple[int, float], ...]:
    pairs = [(token_id, value) for token_id, value in zip(ids, logprobs, strict=True) if value > -math.inf]
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count])
