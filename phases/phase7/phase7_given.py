"""Phase 7, Fusion: what its starter needs, and no task is about."""

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.options import option
from minfer.phase6 import QuantizationOptions

# ==== phase7/merge.py ===============================================================================================
# Merging linear layers that read the same input: one product in place of several, with the very same weights.


def _frozen(parts: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)


# ==== phase7/compilation.py =========================================================================================
# Compilation: what `torch.compile` makes of the region between two attentions, counted, and why it could not.


AUTO, EAGER = "auto", "none"
"""The compiler's names for: inductor if the model is worth it; do not compile."""

WORTHWHILE = 2**24
"""Parameters from which on compiling, some seconds, pays: a smaller model's whole answer takes no longer."""

INSTALL = {
    "cpu": "install g++ or clang (Debian: apt install g++; macOS: xcode-select --install)",
    "cuda": "install Triton and a C compiler (pip install triton; apt install gcc)",
}


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
PRODUCTS: "weakref.WeakValueDictionary[int, nn.Module]" = weakref.WeakValueDictionary()
"""The layers behind the handles of live products."""
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
        self.layer, self.out_features = layer, out_features
        number = next(_numbers)
        self.handle = torch.tensor(number, device="cpu")
        PRODUCTS[number] = layer

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)`."""
        return PRODUCT(x, self.handle, self.out_features)


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


def product(layer: nn.Module) -> nn.Module:
    """A block's linear layer in the form that is fastest where it lives.

    A plain layer that cannot be packed stays as it is, visible to the compiler; what it cannot trace, a packed or a
    quantised layer, becomes a `Product`.
    """
    if not isinstance(layer, nn.Linear):
        return Product(layer, int(layer.out_features))  # type: ignore[arg-type]
    return Product(PackedLinear(layer), layer.out_features) if PackedLinear.serves(layer.weight) else layer


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


# ==== phase7/engine.py ==============================================================================================
# Phase 7's change: `prepare_model` merges products and compiles what lies between two attentions.


WARMUP_TOKENS = (1, 7)  # one row is a size of its own to the compiler; seven stands for any other number


@dataclass(frozen=True)
class FusionOptions(QuantizationOptions):
    """Phase 7's options."""

    compiler: str = option("auto", "torch.compile backend for what lies between attentions: auto, none, inductor, …")
