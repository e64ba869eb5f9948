"""Parallel layers: what stands in a rank's shard where a layer's work is shared with other ranks.

Columns need nothing: a plain linear layer with fewer outputs. So a layer has two sums over the ranks: after attention's
output product and after the MLP's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minfer.core.group import Group


class RowParallel(nn.Module):
    """y = Σ over ranks of x·Wᵀ, + b. Each rank has the columns of W that its own channels of x meet.

    It wraps an `nn.Linear` rather than being one: what quantises or packs linear layers finds that, and the sum stays.
    """

    def __init__(self, linear: nn.Linear, group: Group) -> None:
        super().__init__()
        self.group = group
        self.out_features = linear.out_features
        self.bias: nn.Parameter | None = linear.bias
        linear.register_parameter("bias", None)
        self.linear: nn.Module = linear

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, own channels)` -> `(*lead, out)`, the same on all ranks; the bias is added once, to the sum."""
        y = self.group.all_reduce(self.linear(x))
        return y if self.bias is None else y + self.bias


class VocabularyEmbedding(nn.Embedding):
    """Each rank knows the tokens from `first` on that it has rows for; the others are zero to it, and summed in."""

    def __init__(self, rows: int, width: int, first: int, group: Group) -> None:
        super().__init__(rows, width)
        self.first, self.group = first, group

    def forward(self, input_ids: Tensor) -> Tensor:
        """ids `(*lead,)` -> `(*lead, hidden)`, the same on all ranks."""
        rows = input_ids - self.first
        known = (rows >= 0) & (rows < self.num_embeddings)
        own = F.embedding(rows.where(known, torch.zeros_like(rows)), self.weight)
        return self.group.all_reduce(own.where(known.unsqueeze(-1), torch.zeros_like(own)))


class VocabularyHead(nn.Module):
    """Logits of each rank's tokens, gathered on all ranks and cut to the vocabulary: behind it are rows of padding."""

    def __init__(self, rows: int, width: int, vocabulary: int, group: Group) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = nn.Parameter(torch.empty(rows, width), requires_grad=False)
        self.quantized: nn.Module = nn.Identity()
        self.vocabulary, self.group = vocabulary, group

    def quantize(self, quantized: nn.Module) -> None:
        """Multiply by that in place of the weight, which stays with the embedding if they are tied."""
        self.weight, self.quantized = None, quantized

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, hidden)` -> `(*lead, vocabulary)`."""
        own = self.quantized(x) if self.weight is None else F.linear(x, self.weight)
        parts = self.group.all_gather(own)  # (ranks, *lead, rows)
        return parts.movedim(0, -2).flatten(-2)[..., : self.vocabulary].contiguous()


class FromPreviousStage(nn.Embedding):
    """In place of the embedding, where a stage is not the first: what the stage before has made of the tokens.

    An embedding of no rows, whose weight says dtype and device.
    """

    def __init__(self, width: int, group: Group, source: int) -> None:
        super().__init__(0, width)
        self.group, self.source = group, source

    def forward(self, input_ids: Tensor) -> Tensor:
        """ids `(*lead,)` -> `(*lead, hidden)`."""
        return self.group.receive(self.weight.new_empty(*input_ids.shape, self.embedding_dim), self.source)


class ToNextStage(nn.Module):
    """In place of the head, where a stage is not the last."""

    def __init__(self, group: Group, to: int) -> None:
        super().__init__()
        self.group, self.next = group, to

    def forward(self, x: Tensor) -> Tensor:
        """Give x `(*lead, hidden)` on, and return it."""
        self.group.send(x.contiguous(), self.next)
        return x


class NoPositions(nn.Module):
    """In place of learned positions, where a stage is not the first: they were added there."""

    def forward(self, positions: Tensor) -> Any:
        """Nothing to add."""
        return 0.0
