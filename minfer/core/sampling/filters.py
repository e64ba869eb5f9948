"""The filters of sampling that need an order of the tokens: top_k and top_p, without a sort.

Both keep the first tokens in descending order, the lower id first where two are equal, so both come down to the
last value that is kept and how many of its equals are: `_first`.

Masks are floats, 1 to keep and 0 to drop: comparing into floats and multiplying by them is several times faster on
a CPU than masks of bool.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def top_k_mask(scores: Tensor, k: Sequence[int]) -> Tensor:
    """A mask (R, V) of exactly k[r] tokens of each row, 1 <= k[r] <= V: the highest, by lower id where equal."""
    count = torch.tensor(k).unsqueeze(1).to(scores.device, non_blocking=True)
    last = scores.topk(max(k)).values.gather(1, count - 1)
    return _first(scores, last, count - (scores > last).sum(-1, keepdim=True))


def top_p_mask(weights: Tensor, p: Tensor) -> Tensor:
    """A mask (R, V) of the fewest tokens whose share of the row's weight reaches p (R, 1), the crossing one included.

    `weights` (R, V), float32 or float64, are from 0 to 1 and need not sum to 1; p is above 0 and at most 1.

    The weight of the last token kept is the largest w for which the tokens of weight >= w reach p. It is found by
    bisection over bit patterns, which order non-negative floats as their values do: exact, in 30 sums for
    float32, where a CPU takes ten times as long to sort a vocabulary.
    """
    slack = 8 * torch.finfo(weights.dtype).eps  # a sum that rounding leaves just short of p has reached it
    target = p * (1 - slack) * weights.sum(-1, keepdim=True)
    bits, steps = (torch.int64, 62) if weights.dtype == torch.float64 else (torch.int32, 30)
    low = torch.zeros_like(target).view(bits)  # weight >= low always reaches the target, weight >= high never does
    high = torch.full_like(target, 2.0).view(bits)
    heavy = torch.empty_like(weights)
    for _ in range(steps):
        middle = (low + high) >> 1
        torch.ge(weights, middle.view(weights.dtype), out=heavy)
        reached = heavy.mul_(weights).sum(-1, keepdim=True) >= target
        low, high = torch.where(reached, middle, low), torch.where(reached, high, middle)
    last = low.view(weights.dtype)
    above = torch.gt(weights, last, out=heavy).mul_(weights).sum(-1, keepdim=True)
    return _first(weights, last, ((target - above) / last).ceil())


def min_p_mask(weights: Tensor, p: Tensor) -> Tensor:
    """A mask (R, V) of the tokens at least p (R, 1) times as likely as the likeliest, whose weight is 1."""
    return torch.ge(weights, p, out=torch.empty_like(weights))


def _first(values: Tensor, last: Tensor, count: Tensor) -> Tensor:
    """A mask (R, V) of what is above `last` (R, 1), and of its equals the first `count` (R, 1), by id."""
    tied = torch.eq(values, last, out=torch.empty_like(values))
    rank = tied.cumsum(-1)  # exact: whole numbers far below the 2**24 that float32 counts to
    tied.mul_(torch.le(rank, count, out=rank))
    return tied.add_(torch.gt(values, last, out=rank))
