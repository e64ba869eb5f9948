"""Merging linear layers that read the same input: one product in place of several, with the very same weights."""

from typing import Any

import torch
from torch import Tensor, nn


def take(owner: nn.Module, name: str) -> nn.Module:
    """Remove the submodule `name` from `owner` and return it: what was merged must not be held a second time."""
    taken = owner.get_submodule(name)
    delattr(owner, name)
    return taken


def merged(layers: list[Any]) -> nn.Module:
    """One layer whose output channels are those of `layers`, in their order.

    `layers`: `nn.Linear`, or quantised layers of one scheme, of one width in; all with a bias, or none. Scales are per
    output channel, so a quantised layer keeps its codes bit by bit.
    """
    first = layers[0]
    if not isinstance(first, nn.Linear):
        return type(first).merged(layers)
    with torch.device("meta"):
        stacked = nn.Linear(first.in_features, sum(layer.out_features for layer in layers), first.bias is not None)
    stacked.weight = _frozen([layer.weight for layer in layers])
    if first.bias is not None:
        stacked.bias = _frozen([layer.bias for layer in layers])
    return stacked


def _frozen(parts: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)
