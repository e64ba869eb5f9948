"""Counting: what the operators of a run compute and move, call by call, by tensors and not by formulas."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

Shape = tuple[int, ...]

VIEWS = re.compile(
    r"aten\.(_?unsafe_view|view|_reshape_alias|reshape|transpose|t|permute|unsqueeze|squeeze|expand|as_strided|select|"
    r"slice|narrow|split|split_with_sizes|chunk|unbind|detach|alias|lift_fresh|empty|empty_like|empty_strided|"
    r"new_empty)\."
)
"""Operators that only describe a tensor anew, or make room."""
PRODUCTS = re.compile(
    r"aten\.(linear|matmul|mm|addmm|bmm|baddbmm)\.|pack_mm|quantized\.linear|mkldnn\._linear|minfer\.product"
)
ATTENTION = re.compile(r"aten\._?scaled_dot_product")
GATHERS = re.compile(r"aten\.(embedding|index|index_select|gather)\.")
"""Operators that read of their first tensor only what they give out."""
CACHE = re.compile(r"aten\.(index_copy_|index_select|index_put_|index)\.")


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """q (B, H, T, D), k and v (B, K, S, D): two products of T · S · D for each of H heads, whatever is masked."""
    return 4 * prod(query) * key[-2]


def _packed(x: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """x (*, in) by a weight of any layout -> (*, out)."""
    return 2 * prod(x) * out_shape[-1]


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Formulas for operators that torch's FlopCounterMode counts as nothing: attention on CPUs, packed weights."""
    known: dict[str, Callable[..., int]] = {
        "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
        "aten::_weight_int8pack_mm": _packed,
        "aten::_weight_int4pack_mm_for_cpu": _packed,
        "aten::_weight_int4pack_mm": _packed,
        "quantized::linear_dynamic_fp16": _packed,
        "quantized::linear_with_input_q_dq_qweight_dq_output_fp32": _packed,
        "mkldnn::_linear_pointwise": _packed,
        "minfer::product": _packed,
    }
    found = {}
    for name, formula in known.items():
        namespace, _, operator = name.partition("::")
        if hasattr(getattr(torch.ops, namespace), operator):
            found[getattr(getattr(torch.ops, namespace), operator)] = formula
    return found


def counted_flops(run: Callable[[], object]) -> int:
    """FLOPs of `run`, as torch counts them, with formulas for what it does not know."""
    with FlopCounterMode(display=False, custom_mapping=flop_formulas()) as counter:
        run()
    return counter.get_total_flops()


class Traffic(TorchDispatchMode):
    """Calls and bytes of operators, while entered, told apart by which memory they touch.

    weights   bytes of the model's parameters that products read
    kv        bytes of keys and values that attention reads
    written   bytes put into `pool`, the memory of the cache
    copied    bytes that are gathered out of it: each is read and written
    others    bytes that all other operators read and write; views move nothing
    """

    def __init__(self, model: nn.Module, pool: Tensor | None = None) -> None:
        super().__init__()
        self.parameters = {_memory(parameter) for parameter in model.parameters()}
        self.pool = _memory(pool) if pool is not None else None
        self.calls: Counter[str] = Counter()
        self.weights = self.kv = self.written = self.copied = self.others = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func) + "."
        if not VIEWS.match(name):
            self._count(name, args, out)
        return out

    def _count(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        if PRODUCTS.search(name):
            self.calls["products"] += 1
            self.weights += sum(_nbytes(one) for one in tensors if _memory(one) in self.parameters)
        elif ATTENTION.match(name):
            self.calls["attention"] += 1
            self.kv += sum(_nbytes(one) for one in tensors[1:3])
        elif CACHE.match(name) and self.pool is not None and _memory(tensors[0]) == self.pool:
            self.calls["cache"] += 1
            if "index_copy_" in name or "index_put_" in name:
                self.written += _nbytes(tensors[-1])
            else:
                self.copied += 2 * _nbytes(out)
        else:
            self.calls["others"] += 1
            read = [*tensors[1:], *_tensors(out)] if GATHERS.match(name) else tensors
            self.others += sum(map(_nbytes, [*read, *_tensors(out)]))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _nbytes(tensor: Tensor) -> int:
    """Bytes of memory behind it: along a dimension that is only expanded there is one number."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return prod(sizes) * tensor.element_size()


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
