"""Phase 7, Fusion: what its starter needs, and no task is about."""

import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.device import Device
from minfer.core.model import wide
from minfer.core.options import option
from minfer.phase6 import FbgemmInt8, Int8Pack, PagedAttention, QuantizationOptions, QuantizedLinear, unit_rows

# ==== phase7/merge.py ===============================================================================================
# Merging linear layers that read the same input: one product in place of several, with the very same weights.


def _frozen(parts: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)


# ==== phase7/compilation.py =========================================================================================
# Compilation: what `torch.compile` makes of the region between two attentions, counted, and why it could not.


AUTO, EAGER = "auto", "none"
"""Values of the option `compiler`: inductor, if the model is large enough to be worth it; do not compile."""

WORTHWHILE = 2**24
"""Parameters from which on compiling, some seconds, pays: a smaller model's whole answer takes no longer."""

INDUCTOR: dict[str, Any] = {
    "cpp.enable_kernel_profile": True,  # what it writes for a CPU has names in a trace; else that takes no time
    "size_asserts": False,
}
"""Inductor's settings. Its checks that an index is within the pool stay on: a write outside would corrupt memory."""

INSTALL = {
    "cpu": "install g++ or clang (Debian: apt install g++; macOS: xcode-select --install)",
    "cuda": "install Triton and a C compiler (pip install triton; apt install gcc)",
}


def _only(argument: str) -> Callable[[Any], list[bool]]:
    """For Dynamo: of the conditions under which it may use a graph, check what kind of tensor the argument is."""
    return lambda guards: [guard.guard_type == "TENSOR_MATCH" and guard.name == argument for guard in guards]


# ==== phase7/decoding.py ============================================================================================
# Decoding: the region between two attentions with the first of them in it, for steps of one token per request.
#
# One query per request is too little work for an attention kernel: what surrounds it (gathering blocks, expanding heads,
# choosing an implementation) takes longer. Written as sums, it is compiled into the region, and reads the pool in place.


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


# ==== phase7/product.py =============================================================================================
# Product: x·Wᵀ + b as one operator, behind which the form of the product is chosen by rows, dtype and device.
#
# The compiler sees a single opaque call, so neither the number of rows nor a packed weight, which it could not trace,
# makes it compile another graph. The operator takes a handle, a tensor that holds a number: unlike a Python number it is
# no constant to the compiler, so all layers share one graph.


LIBRARY = torch.library.Library("minfer", "FRAGMENT")
OPERATOR = "product"
while torch._C._dispatch_has_kernel(f"minfer::{OPERATOR}"):  # by another file with this code: a student's, say
    OPERATOR += "_"
LIBRARY.define(f"{OPERATOR}(Tensor x, Tensor handle, int out_features) -> Tensor")
PRODUCTS: "weakref.WeakValueDictionary[int, Callable[[Tensor], Tensor]]" = weakref.WeakValueDictionary()
"""What is behind the handles of live products."""
_numbers = itertools.count()


def _run(x: Tensor, handle: Tensor, out_features: int) -> Tensor:
    return PRODUCTS[int(handle)](x)


def _shape(x: Tensor, handle: Tensor, out_features: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], out_features)


LIBRARY.impl(OPERATOR, _run, "CompositeExplicitAutograd")
torch.library.register_fake(f"minfer::{OPERATOR}", _shape, lib=LIBRARY)
PRODUCT = getattr(torch.ops.minfer, OPERATOR)
"""The operator."""


class Product(nn.Module):
    """A linear layer behind the operator `minfer::product`."""

    def __init__(self, layer: nn.Module, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features
        self.handle = torch.tensor(next(_numbers), device="cpu")
        self.exchange(layer)

    def behind(self) -> Callable[[Tensor], Tensor]:
        """What the operator calls; `forward` alone, since nothing is hooked to a layer that only this module knows."""
        return self.layer.forward

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`."""
        return PRODUCT(x, self.handle, self.out_features)

    def exchange(self, layer: nn.Module) -> None:
        """Let another layer of the same sizes stand behind the operator."""
        self.layer = layer
        self.multiply = PRODUCTS[int(self.handle)] = self.behind()


class QuantizedProduct(Product):
    """A quantised layer's bare product: its bias is added where the compiler sees it, and fuses it with more."""

    layer: QuantizedLinear

    def behind(self) -> Callable[[Tensor], Tensor]:
        """The product of rows `(R, in)`, without the bias."""
        return self.layer.kernel.bind(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`."""
        return self.biased(self.bare(x))

    def bare(self, x: Tensor) -> Tensor:
        """The operator, on rows."""
        return super().forward(x.flatten(0, -2)).unflatten(0, x.shape[:-1])

    def biased(self, y: Tensor) -> Tensor:
        """y `(*lead, out)`, with the layer's bias if it has one."""
        return y if self.layer.bias is None else y + self.layer.bias.to(y.dtype)


class UnitRowsProduct(QuantizedProduct):
    """A quantised layer whose rows are divided by their largest absolute values, and its result multiplied by these.

    The compiler sees both, and fuses them with what comes before and after the product, which stays opaque to it.
    """

    def behind(self) -> Callable[[Tensor], Tensor]:
        """The product of rows within ±1."""
        return self.layer.multiply_units

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`."""
        units, largest = unit_rows(x)
        return self.biased((self.bare(units) * largest).to(x.dtype))


SUMMED = "compiled sums (AVX-512)"
"""The kernel's name where an engine says which ran; other CPUs take phase 6's kernel."""


class SummedProduct(QuantizedProduct):
    """A layer of 8-bit codes that are stored as they are: for a single row the compiler writes the product itself.

    A single row uses each code once, so no packed layout would help: the product is a loop over the codes, compiled
    like any other sum, without a call. `as_strided` makes the compiler store the row first: else it would inline what
    computes the row, a norm, and compute that again for each channel.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`."""
        if not torch.compiler.is_compiling() or x.shape[:-1] != (1,):
            return super().forward(x)
        row = x.to(wide(x.dtype)).contiguous().as_strided((self.layer.in_features,), (1,))
        sums = (self.layer.codes * row).sum(-1)  # of each channel
        return self.biased((sums * self.layer.scale).to(x.dtype).unsqueeze(0))

    @staticmethod
    def serves(layer: QuantizedLinear) -> bool:
        """Whether the codes are there to be read, on a CPU whose compiler widens many of them at once."""
        stored = isinstance(layer.kernel, Int8Pack) and layer.codes.device.type == "cpu"
        return stored and torch.backends.cpu.get_cpu_capability() == "AVX512"


class PackedLinear(nn.Module):
    """A linear layer on a CPU whose weight is laid out as oneDNN's product wants it; no second copy is kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    def unpacked(self) -> nn.Linear:
        """The plain layer again, with the very same weight."""
        with torch.device("meta"):
            plain = nn.Linear(self.in_features, self.out_features, bias=False)
        plain.weight = nn.Parameter(self.packed.to_dense(), requires_grad=False)
        plain.bias = self.bias
        return plain

    @staticmethod
    def serves(weight: Tensor) -> bool:
        """Whether oneDNN multiplies in this dtype here."""
        if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
            return False
        if not torch.backends.mkldnn.is_available():
            return False
        native = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
        probe = native.get(weight.dtype)
        return weight.dtype == torch.float32 or (probe is not None and getattr(torch.ops.mkldnn, probe)())


class TransposedLinear(nn.Module):
    """A layer without bias as (W·xᵀ)ᵀ, for a weight that is the embedding's too and so stays as it is.

    In float32 BLAS reads W faster as the left factor, for up to some hundred rows; a single row is doubled, because its
    product of a matrix and one vector runs on one core.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`."""
        rows = x.flatten(0, -2)
        factor = rows if len(rows) > 1 else rows.repeat(2, 1)
        return torch.mm(self.weight, factor.t()).t()[: len(rows)].unflatten(0, x.shape[:-1])


def product(layer: nn.Module, device: Device) -> nn.Module:
    """A block's linear layer in the form that is fastest on the device that multiplies.

    A plain layer that cannot be packed stays as it is, visible to the compiler; what it cannot trace, a packed or a
    quantised layer, or one that does more beside a product, becomes a `Product`.
    """
    if isinstance(layer, QuantizedLinear):
        return quantized_form(layer)(layer, layer.out_features)
    if isinstance(layer, nn.Linear):
        fast = packed(layer, device)
        return layer if fast is layer else Product(fast, layer.out_features)
    for name, part in list(layer.named_children()):
        if isinstance(part, nn.Linear):
            setattr(layer, name, packed(part, device))
    return Product(layer, int(layer.out_features))  # type: ignore[arg-type]


def quantized_form(layer: QuantizedLinear) -> type[QuantizedProduct]:
    """What of a quantised layer's product the compiler is shown."""
    if isinstance(layer.kernel, FbgemmInt8):
        return UnitRowsProduct
    return SummedProduct if SummedProduct.serves(layer) else QuantizedProduct


def packed(linear: nn.Linear, device: Device) -> nn.Module:
    """The layer in oneDNN's form, if it may be; else as it is."""
    packable = device.torch_device.type == "cpu" and PackedLinear.serves(linear.weight)
    return PackedLinear(linear) if packable else linear


def head(layer: nn.Module, embedding: nn.Embedding) -> nn.Module:
    """The head in the form that is fastest where it lives; a tied one shares the embedding's weight and cannot move."""
    if not isinstance(layer, nn.Linear):
        return layer
    if layer.weight is not embedding.weight:
        return PackedLinear(layer) if PackedLinear.serves(layer.weight) else layer
    on_cpu = layer.weight.device.type == "cpu"
    return TransposedLinear(layer) if on_cpu and layer.weight.dtype == torch.float32 else layer


# ==== phase7/fused_model.py =========================================================================================
# FusedModel: the model's forward, cut at each attention, so that one region between two of them serves all layers.


def between(block: Any, following: Any, x: Tensor, attended: Tensor, rotary: Tensor | None) -> tuple[Tensor, ...]:
    """From a layer's attention to the next one's: x and `attended` of one -> x, q, k, v of the other."""
    x = block.leave(x, attended)
    return x, *following.enter(x, rotary)


def _nothing(block: nn.Module) -> None:
    """The default of `will_run` and `has_run`: weights are always where they are multiplied."""


# ==== phase7/engine.py ==============================================================================================
# Phase 7's change: `prepare_model` merges products and compiles what lies between two attentions.


WARMUP_TOKENS = (1, 7)  # one row is a size of its own to the compiler; seven stands for any other number
WARMUP_BLOCKS = 3  # of a decode step: any number above 1


@dataclass(frozen=True)
class FusionOptions(QuantizationOptions):
    """Phase 7's options."""

    compiler: str = option("auto", "torch.compile backend for what lies between attentions: auto, none, inductor, …")
