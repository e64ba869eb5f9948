"""What both sides are compared by."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Answer:
    """Greedy tokens, and the logits `(steps, vocab)` that they were taken from."""

    token_ids: list[int]
    logits: torch.Tensor
