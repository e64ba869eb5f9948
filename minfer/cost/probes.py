"""Probes: small pieces of work, timed alone, whose rates the cost model is made of. No probe is an engine's step."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.attention import Visible, attend
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.models import model_class
from minfer.cost.hardware import Curve, Line
from minfer.phase6 import QuantizedLinear
from minfer.phase7.product import PackedLinear, TransposedLinear

LAYERS = (nn.Linear, QuantizedLinear, PackedLinear, TransposedLinear)
ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 24, 48, 96, 192, 512)
MOST_LOGITS = 96  # rows that need logits at once: one of each request
DECODES = ((1, 48), (1, 384), (6, 96), (12, 320))  # batch, context
SLOW = 1.0  # seconds
Found = dict[tuple[str, int], float]
Points = list[tuple[float, float]]
PASSES = 2  # over all sizes: what disturbs the machine during one is over in the other
COLD = 2**28  # bytes: more than caches hold
READING = 2**26  # numbers: more than caches hold
LEAST = 0.05  # seconds that a probe is repeated for


def seconds(work: Callable[[], object], device: Device, least: float = 0.0, most: int = 1000) -> float:
    """The median time of a call, the first one not counted; but that one's time if it is too long to be repeated.

    Not the least: a step makes hundreds of calls, which take what such calls usually take.
    """
    first = once(work, device)
    if first > SLOW:
        return first
    took = [once(work, device), once(work, device)]
    while sum(took) < (least or LEAST) and len(took) < most:
        took.append(once(work, device))
    return statistics.median(took)


def once(work: Callable[[], object], device: Device) -> float:
    """Seconds of one call, until the device has done it."""
    device.synchronize()
    start = device.clock()
    work()
    device.synchronize()
    return device.clock() - start


def products(model: Any, rows_dtype: torch.dtype, device: Device) -> Found:
    """By part and rows, seconds per weight: all layers' products one after another, as in a forward; and the head's.

    The weights of a model that is larger than the caches come from memory each time, as they do in a step.
    """
    random = partial(torch.randn, dtype=rows_dtype, device=device.torch_device)
    layers = products_of(model)
    weights = sum(map(weights_in, layers))

    def layers_alone(rows: int) -> float:
        inputs = {width: random((rows, width)) for width in widths(layers)}
        return seconds(partial(each, layers, inputs), device) / weights

    return {**swept("layers", ROWS, layers_alone), **head_products(model, rows_dtype, device)}


def head_products(model: Any, rows_dtype: torch.dtype, device: Device) -> Found:
    """As `products`, of the head alone."""
    head = model.lm_head

    def alone(rows: int) -> float:
        row = torch.randn((rows, width_in(head)), dtype=rows_dtype, device=device.torch_device)
        return seconds(partial(head, row), device) / weights_in(head)

    return swept("head", [rows for rows in ROWS if rows <= MOST_LOGITS], alone)


def swept(part: str, sizes: Sequence[int], measure: Callable[[int], float]) -> Found:
    """What `measure` finds at each number of rows; of several passes, the least."""
    passes = [[measure(rows) for rows in sizes] for _ in range(PASSES)]
    return {(part, rows): min(found) for rows, *found in zip(sizes, *passes, strict=True)}


def products_of(model: Any) -> list[Any]:
    """The linear layers of its blocks."""
    return [one for one in blocks_of(model).modules() if isinstance(one, LAYERS)]


def blocks_of(model: Any) -> Any:
    """The `ModuleList` of its blocks: `h` in GPT-2 as files name it, `layers` elsewhere."""
    return getattr(model, "layers", None) or model.h


def each(layers: list[Any], inputs: dict[int, Tensor]) -> None:
    """Every layer once, on the input of its width."""
    for layer in layers:
        layer(inputs[width_in(layer)])


def widths(layers: list[Any]) -> set[int]:
    """The widths of inputs."""
    return {width_in(layer) for layer in layers}


def width_in(layer: Any) -> int:
    """Columns of the weight."""
    return layer.weight.shape[1] if isinstance(layer, TransposedLinear) else layer.in_features


def weights_in(layer: Any) -> int:
    """Numbers in the weight."""
    return layer.weight.numel() if isinstance(layer, TransposedLinear) else layer.in_features * layer.out_features


def curves(found: Found) -> dict[str, Curve]:
    """By part."""
    return {
        part: Curve(tuple((rows, took) for (name, rows), took in found.items() if name == part))
        for part in ("layers", "head")
    }


def fitted(measure: Callable[[], Points]) -> Line:
    """The line through the points that `measure` finds, (size, seconds); of several passes, the least of each."""
    passes = [measure() for _ in range(PASSES)]
    return line([min(same, key=lambda point: point[1]) for same in zip(*passes, strict=True)])


def line(points: Points) -> Line:
    """The line through (size, seconds) of least relative error, neither number below 0."""
    import numpy as np

    size, took = np.array(points).T
    columns = np.stack([1 / took, size / took], 1)
    call, per = np.linalg.lstsq(columns, np.ones(len(points)), rcond=None)[0]
    if call < 0:
        call, per = 0.0, float(np.mean(took / size))
    if per < 0:
        call, per = float(np.mean(took)), 0.0
    return Line(float(call), float(per))


def gathering(config: ModelConfig, dtype: torch.dtype, device: Device) -> Points:
    """Of a layer's share of a paged cache: two stores, two gatherings; by the bytes that are read and written."""
    slot = torch.tensor([3], device=device.torch_device)
    points: Points = []
    for blocks in (4, 24, 160):
        shape = (2, blocks + 1, 16, config.num_kv_heads, config.head_dim)
        nbytes = math.prod(shape) * dtype.itemsize
        layers = max(1, min(config.num_layers, COLD // nbytes))
        pool = torch.zeros((layers, *shape), dtype=dtype, device=device.torch_device)
        order = torch.randperm(blocks, device=device.torch_device)
        took = seconds(partial(store_and_gather, pool, slot, order), device) / layers
        points.append((2.0 * nbytes * blocks / (blocks + 1), took))
    return points


def store_and_gather(pool: Tensor, slot: Tensor, order: Tensor) -> None:
    """As every layer of a paged cache does, one after another: by then the caches hold another layer's.

    pool `(layers, 2, blocks, block_size, n_kv_heads, head_dim)`.
    """
    for part in pool.flatten(0, 1):
        part.flatten(0, 1).index_copy_(0, slot, part[-1, :1].clone())
        part.index_select(0, order)


def decoding(config: ModelConfig, dtype: torch.dtype, device: Device) -> Points:
    """A layer's attention of single tokens, by the bytes of keys and values that it reads."""
    random = partial(torch.randn, dtype=dtype, device=device.torch_device)
    points: Points = []
    for batch, context in DECODES:
        query = random((batch, 1, config.num_heads, config.head_dim))
        keys, values = (random((batch, context, config.num_kv_heads, config.head_dim)) for _ in range(2))
        mask = torch.ones(batch, 1, 1, context, dtype=torch.bool, device=device.torch_device)
        took = seconds(partial(attend, query, Visible(keys, values, mask)), device)
        points.append((2.0 * keys.nbytes, took))
    return points


def prompting(config: ModelConfig, dtype: torch.dtype, device: Device) -> Points:
    """A layer's causal attention of a prompt, by its FLOPs, as they are counted: masked ones too."""
    random = partial(torch.randn, dtype=dtype, device=device.torch_device)
    points: Points = []
    for tokens in (24, 96, 384):
        query = random((tokens, config.num_heads, config.head_dim))
        keys, values = (random((tokens, config.num_kv_heads, config.head_dim)) for _ in range(2))
        took = seconds(partial(attend, query, Visible(keys, values, is_causal=True)), device)
        points.append((4.0 * config.num_heads * config.head_dim * tokens**2, took))
    return points


def operation(device: Device) -> float:
    """Seconds of an operator on so few numbers that only calling it costs."""
    x = torch.ones(8, 8, device=device.torch_device)

    def chain() -> None:
        y = x
        for _ in range(100):
            y = y * x + x

    return seconds(chain, device) / 200


def small(config: ModelConfig, layers: int) -> Any:
    """A model of the same kind whose layers have next to no numbers: what it takes is calling its operators."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
    made = replace(config, num_layers=layers, vocab_size=64, windows=(None,) * layers, **sizes)  # type: ignore[arg-type]
    if config.rope is not None:
        made = replace(made, rope=replace(config.rope))
    return model_class(made)(made)


def moving(device: Device) -> float:
    """Bytes per second of elementwise operators on the rows of a prompt, which caches hold."""
    x = torch.ones(256, 1536, device=device.torch_device)
    return 3 * x.nbytes / max(1e-9, seconds(lambda: x * x, device) - operation(device))


def reading(device: Device) -> float:
    """Bytes per second of reading far more than caches hold: a sum over 256 MB."""
    x = torch.ones(READING, device=device.torch_device)
    return x.nbytes / seconds(x.sum, device, least=0.3)


def multiplying(dtype: torch.dtype, device: Device) -> float:
    """FLOPs per second of a large product."""
    size = 768 if device.torch_device.type == "cpu" else 8192
    x = torch.randn(size, size, dtype=dtype, device=device.torch_device)
    return 2 * size**3 / seconds(lambda: x @ x, device)
