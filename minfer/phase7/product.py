"""Product: x·Wᵀ + b as one operator, behind which the form of the product is chosen by rows, dtype and device.

The compiler sees a single opaque call, so neither the number of rows nor a packed weight, which it could not trace,
makes it compile another graph. The operator takes a handle, a tensor that holds a number: unlike a Python number it is
no constant to the compiler, so all layers share one graph.
"""

import itertools
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from minfer.core.device import Device
from minfer.core.model import wide
from minfer.phase6 import FbgemmInt8, Int8Pack, QuantizedLinear, unit_rows

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
