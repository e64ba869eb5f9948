"""Operations: how many operators the forward of a model calls beside products and attention, and what they move.

Counted by running the model's own forward on the device `meta`, where tensors have shapes and nothing else: a model of
any size is counted in a moment, and no formula can be out of date.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minfer.core.config import ModelConfig
from minfer.core.models import hollow
from minfer.cost.counting import Traffic

PAGED_CALLS = 4
"""Operators of a paged cache in each layer: keys and values are each stored and gathered."""
COMPILED_REGION = 5
"""Operators that are left between the products of a layer when what lies there is compiled, those that only make
shapes for attention among them: `minfer bench ops` counts 159 in SmolLM2's 30 layers."""
FUSED_PRODUCTS = 4
"""Of a layer whose q, k, v and gate, up are merged."""


class Operations(NamedTuple):
    """Of one forward: calls of products, calls of others, and the bytes that the others read and write."""

    products: int
    others: int
    nbytes: int


@lru_cache(maxsize=64)
def eager(config: ModelConfig, tokens: int, rows: int, itemsize: int) -> Operations:
    """As `Transformer.forward` is written: each operator by itself."""
    model: Any = hollow(config)
    model.to({8: torch.float64, 4: torch.float32, 2: torch.bfloat16}[itemsize])
    wide = max(itemsize, 4)
    if config.rope is not None:
        dtype = torch.float64 if wide == 8 else torch.float32
        model.rotary = torch.empty(config.context, 2, config.head_dim, device="meta", dtype=dtype)
    ids = torch.zeros(tokens, dtype=torch.int64, device="meta")
    with torch.inference_mode(), Traffic(model) as traffic:
        model(ids, ids, [_attended] * config.num_layers, ids[:rows])
    return Operations(traffic.calls["products"], traffic.calls["others"], traffic.others)


def compiled(config: ModelConfig, tokens: int, rows: int, itemsize: int) -> Operations:
    """As phase 7 leaves them: a region between two products reads what the one gave and writes what the other takes."""
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = 5 * hidden + 2 * (query + 2 * kv) + 3 * inner  # two norms with their residuals, rotary, gate · up
    nbytes = itemsize * (tokens * config.num_layers * layer + 2 * rows * hidden)
    others = COMPILED_REGION * config.num_layers + 3
    return Operations(FUSED_PRODUCTS * config.num_layers + 1, others, nbytes)


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Stands for attention, which is not counted here."""
    return torch.empty_like(q)
