"""The seam between model and cache: what a layer attends to, and the one formula that all phases share.

The model calls `attention[i](q, k, v)` in layer i and never asks what is behind it. Shapes are
`q (*lead, n_heads, head_dim)`, `k, v (*lead, n_kv_heads, head_dim)`, rotated; the result has the shape of q.
A cache overrides `update`, which stores k and v and says what the queries may see; a paged one overrides `__call__`.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

MASK_BYTES = 11
"""Bytes of a query-key pair while `causal_mask` makes its mask: an int64 distance and three bools."""


class Attention(Protocol):
    """What the model needs of a layer's attention."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend: q `(*lead, n_heads, head_dim)` over whatever is visible; returns the shape of q."""
        ...


class Visible(NamedTuple):
    """What the queries of one step may see in one layer; lead is `(T,)` or `(B, T)` as in the query."""

    keys: Tensor  # (*lead with S for T, n_kv_heads, head_dim)
    values: Tensor
    mask: Tensor | None = None  # bool, broadcasts to (*batch, n_heads, T, S), True: visible; None: everything
    is_causal: bool = False  # instead of a mask, only where T = S: query t sees keys 0 … t


class LayerAttention:
    """One layer's attention: `update` says what is visible, the call is softmax(q·kᵀ/√d + mask)·v."""

    def update(self, k: Tensor, v: Tensor) -> Visible:
        """Take in the step's keys and values, return all that its queries may see."""
        raise NotImplementedError

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; see the module's docstring for shapes."""
        return attend(q, self.update(k, v))


class CausalAttention(LayerAttention):
    """Without a cache: every query sees the keys that came in with it, up to its own position.

    `window`: a query sees that many positions, itself included; None: all. One object serves all layers of a window,
    so that a step makes its mask once.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.mask: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> Visible:
        """Everything that is visible came in just now."""
        length = k.shape[-3]
        if self.window is None or length <= self.window:
            return Visible(k, v, is_causal=True)
        if self.mask is None or len(self.mask) != length:
            rows = torch.arange(length, device=k.device)
            self.mask = causal_mask(rows, rows, self.window)
        return Visible(k, v, self.mask)


def attend(q: Tensor, visible: Visible) -> Tensor:
    """softmax(q·kᵀ/√head_dim)·v with grouped heads: query head h reads key/value head h // (n_heads / n_kv_heads)."""
    heads_first = [x.transpose(-3, -2) for x in (q, visible.keys, visible.values)]  # (*batch, heads, T or S, D)
    query, keys, values = (x.unsqueeze(0) if x.dim() == 3 else x for x in heads_first)
    grouped = query.shape[1] != keys.shape[1]
    out = F.scaled_dot_product_attention(
        query, keys, values, attn_mask=visible.mask, is_causal=visible.is_causal, enable_gqa=grouped
    )
    return out.transpose(1, 2).reshape(q.shape)


def causal_mask(query_positions: Tensor, key_positions: Tensor, window: int | None = None) -> Tensor:
    """Which keys each query sees: bool `(*lead, T, S)`, True: visible.

    Positions are int64 of shapes `(*lead, T)` and `(S,)`. Comparing positions, not row numbers, is what keeps the mask
    right when there are fewer queries than keys.
    """
    distance = query_positions.unsqueeze(-1) - key_positions
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)
