"""Layer probes: a layer without its products, alone, and with a decode step's attention compiled into it; and the
products in their places."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.models import model_class
from minfer.cost.hardware import Line
from minfer.cost.probes import (
    DECODES,
    ROWS,
    Found,
    Points,
    blocks_of,
    head_products,
    products_of,
    seconds,
    swept,
    weights_in,
)
from minfer.phase5 import PagedKVCache, PagedStep
from minfer.phase7.product import Product

LAYERS = 4
VOCABULARY = 64
BLOCK = 16
TOKENS = (2, 24, 96, 320)
Forward = Callable[..., Tensor]


class Given(nn.Module):
    """Stands for a linear layer: room for what it would give, and no product."""

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features, self.bias = out_features, None

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`, whatever lies there."""
        return x.new_empty(*x.shape[:-1], self.out_features)


def short(config: ModelConfig) -> Any:
    """A model with layers as wide as those of `config`, but few, and hardly a vocabulary."""
    few = {"num_layers": LAYERS, "vocab_size": VOCABULARY, "windows": config.windows[:1] * LAYERS}
    made = replace(config, **few)  # type: ignore[arg-type]
    return model_class(made)(made)


def without_products(model: Any) -> Any:
    """The same model, in whose layers nothing is multiplied."""
    for owner in list(blocks_of(model).modules()):
        for name, part in list(owner.named_children()):
            if isinstance(part, Product):
                part.exchange(Given(part.out_features))
            elif isinstance(part, nn.Linear) and not isinstance(owner, Product):
                setattr(owner, name, Given(part.out_features))
    return model


@torch.inference_mode()
def beside_products(model: Forward, device: Device) -> Points:
    """A layer's operators beside products and attention, by tokens."""
    points: Points = []
    for tokens in TOKENS:
        ids = torch.zeros(tokens, dtype=torch.int64, device=device.torch_device)
        took = seconds(partial(model, ids, ids, [_query] * LAYERS, ids[:1]), device)
        points.append((float(tokens), took / LAYERS))
    return points


@torch.inference_mode()
def compiled_decoding(model: Any, beside: Line, device: Device) -> Points:
    """A layer's attention of single tokens where it is compiled with what surrounds it (`beside`), by bytes read."""
    points: Points = []
    for batch, context in DECODES:
        cache = paged(model.config, batch, context, device)
        ids = torch.zeros(batch, dtype=torch.int64, device=device.torch_device)
        took = seconds(partial(model, ids, ids, cache.layers, ids[:1]), device) / LAYERS
        nbytes = batch * context * cache.pool[0, 0, 0, 0].numel() * 2 * cache.pool.element_size()
        points.append((float(nbytes), max(1e-9, took - beside.seconds(batch))))
    return points


@torch.inference_mode()
def products_in_place(model: Any, rows_dtype: torch.dtype, beside: Line, device: Device) -> Found:
    """As `probes.products`; of the layers, what a forward without attention takes longer than `beside`.

    Called one after another, products find the other threads awake: after a dozen small operators they do not.
    """
    heads = head_products(model, rows_dtype, device)
    weights, blocks = sum(map(weights_in, products_of(model))), len(blocks_of(model))
    head = heads["head", 1] * weights_in(model.lm_head)

    def in_place(rows: int) -> float:
        ids = torch.zeros(rows, dtype=torch.int64, device=device.torch_device)
        whole = seconds(partial(model, ids, ids, [_query] * blocks, ids[:1]), device)
        return max(1e-9, whole - head - blocks * beside.seconds(rows)) / weights

    return {**swept("layers", ROWS, in_place), **heads}


def paged(config: ModelConfig, batch: int, context: int, device: Device) -> PagedKVCache:
    """A pool in which `batch` requests hold `context` tokens each, whose next step decodes the last of them."""
    blocks = context // BLOCK
    cache = PagedKVCache(config, batch * blocks, BLOCK, torch.float32, device.torch_device)
    tables = torch.randperm(batch * blocks, device=device.torch_device).view(batch, blocks)
    last = torch.full((batch,), context - 1, device=device.torch_device)
    slots = tables[:, -1] * BLOCK + BLOCK - 1
    cache.step = PagedStep(slots, tables, cache.decode_masks(last, context), [])
    return cache


def _query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Stands for attention."""
    return q
