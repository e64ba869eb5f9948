"""Decoding: the region between two attentions with the first of them in it, for steps of one token per request.

One query per request is too little work for an attention kernel: what surrounds it (gathering blocks, expanding heads,
choosing an implementation) takes longer. Written as sums, it is compiled into the region, and reads the pool in place.
"""

from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.model import wide
from minfer.phase6 import PagedAttention


def attend_rows(q: Tensor, keys: Tensor, values: Tensor, context: Tensor, seen: Tensor, scale: float) -> Tensor:
    """softmax(scale · q·kᵀ)·v of one query per request, as sums; computed in float32 at least.

    q `(B, kv_heads, group, head_dim)`; keys and values `(slots, kv_heads, head_dim)`, all of the pool; context int64
    `(B, S)`: the slots of each request; seen bool `(B, S)`. Returns the shape and dtype of q.
    """
    query = q.to(wide(q.dtype)).unsqueeze(1)
    scores = (query * keys[context].unsqueeze(3)).sum(-1) * scale  # (B, S, kv_heads, group)
    scores = scores.masked_fill(~seen[:, :, None, None], -torch.inf)
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    total = weights.sum(1).unsqueeze(-1)  # divided by at the end: a division per number, not per number and key
    return ((weights.unsqueeze(-1) * values[context].unsqueeze(3)).sum(1) / total).to(q.dtype)


def attend_and_go_on(
    block: Any, following: Any, x: Tensor, q: Tensor, k: Tensor, v: Tensor, rotary: Tensor | None, layer: list[Tensor]
) -> tuple[Tensor, ...]:
    """From a layer's q, k and v to the next one's: k and v into the pool, attention, `leave`, `enter`.

    x, q, k, v: `(B, width)`, heads side by side. `layer`: keys and values of the pool, `(slots, width of k)`, and of
    the step the slots `(B,)` of k and v, context and mask `(B, S)`. To the compiler B, S and the pool's size are
    variables; the assertion makes constants of the widths.
    """
    keys, values, slots, context, seen = layer
    heads, width = (block.kv_heads, block.head_dim), block.kv_heads * block.head_dim
    assert all(part.shape[1] == width for part in (k, v, keys, values))
    assert q.shape[1] == width * block.group
    keys.index_put_((slots,), k)
    values.index_put_((slots,), v)
    q = q.view(-1, block.kv_heads, block.group, block.head_dim)
    keys, values = keys.unflatten(1, heads), values.unflatten(1, heads)
    attended = attend_rows(q, keys, values, context, seen, block.head_dim**-0.5)
    x = block.leave(x, attended.flatten(1))
    return x, *(part.flatten(1) for part in following.enter(x, rotary))


def without_guards(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The code that Dynamo made of a compiled function, as a function whose guards are not evaluated before each call.

    Guards tell whether a graph fits its arguments. To evaluate them takes 40 µs, as long as a small product, and the
    caller knows that they hold: it has just called `compiled` with arguments of the same kind. With several graphs only
    the guards tell which one fits; then, where nothing is compiled yet, and where this torch does not show what Dynamo
    made, `compiled` itself is returned.
    """
    own: Any = getattr(compiled, "_torchdynamo_orig_callable", None)
    entries = getattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
    made = [] if own is None or entries is None else entries(own.__code__)
    return FunctionType(made[0].code, own.__globals__) if len(made) == 1 else compiled


CONSTANT = (bool, int, float, str, list, type(None), FunctionType, BuiltinFunctionType)
"""Attributes of a module that the compiler takes for constants."""


def alike(blocks: Iterable[nn.Module]) -> bool:
    """Whether a graph made of one block is right for all: they differ in nothing but what their tensors hold."""
    first, *others = (constants(block) for block in blocks)
    return all(other == first for other in others)


def constants(block: nn.Module) -> list[Any]:
    """Of each of its modules: name, class, attributes that are no tensors, dtypes and shapes of the parameters."""
    made: list[Any] = []
    for name, part in block.named_modules():
        fixed = {key: value for key, value in vars(part).items() if isinstance(value, CONSTANT)}
        kinds = {key: (value.dtype, value.shape) for key, value in part.named_parameters(recurse=False)}
        made.append((name, type(part), fixed, kinds))
    return made


class Decoding:
    """`attend_and_go_on` compiled: once for a single row, which is a size of its own to the compiler, once for more."""

    def __init__(self, compiled: Callable[[Any], Callable[..., Any]]) -> None:
        self.one, self.more = compiled(attend_and_go_on), compiled(attend_and_go_on)

    def serves(self, attention: Any) -> bool:
        """Whether a layer's attention, and so that of all, is of one token per request over a pool of blocks."""
        if not isinstance(attention, PagedAttention):
            return False
        step = attention.cache.step
        return len(step.tables) == len(step.slots) and step.context.shape[1] > 1  # a width of 1 is a size of its own

    def region(self, rows: int) -> Callable[..., tuple[Tensor, ...]]:
        """`attend_and_go_on` for so many requests."""
        return self.one if rows == 1 else self.more
