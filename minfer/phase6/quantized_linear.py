"""QuantizedLinear: y = x·Wᵀ + b, with W in the storage of a scheme, or in the one that a kernel wants."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.phase6.choice import choose
from minfer.phase6.kernels import DEQUANTIZE, Kernel
from minfer.phase6.schemes import Parts, PerChannel, Scheme


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is kept as the parts of `scheme`: parameters `codes`, `scale`, `zero`.

    There is one copy of the weight: `pack` exchanges the parts for what its kernel multiplies with, and `parts()` makes
    them again. `quantize_rows` (int8, fp8): each row of x is rounded likewise, by a scale of its own.
    `ran[kernel, rows]` counts the products.
    """

    bias: nn.Parameter | None
    codes: nn.Parameter
    scale: nn.Parameter
    grid: nn.Parameter

    def __init__(
        self, in_features: int, out_features: int, scheme: Scheme, bias: bool = False, dtype: torch.dtype | None = None
    ) -> None:
        """A layer to be filled; its bias, if it has one, is of `dtype`. Memory is torch's current default device's."""
        super().__init__()
        self.in_features, self.out_features, self.scheme = in_features, out_features, scheme
        for name, (shape, kind) in scheme.shapes(out_features, in_features).items():
            self.register_parameter(name, frozen(torch.empty(shape, dtype=kind)))
        self.register_parameter("bias", frozen(torch.empty(out_features, dtype=dtype)) if bias else None)
        self.quantize_rows = False
        self.kernel: Kernel = DEQUANTIZE
        self.packed: Any = None  # an opaque weight, of kernels that have one
        self.ran: Counter[tuple[str, int]] = Counter()

    @classmethod
    def from_linear(cls, linear: nn.Linear, scheme: Scheme, name: str = "a weight") -> "QuantizedLinear":
        """Quantise the weight of `linear`. Raises `CheckpointError` that names it, as `Scheme.encode` does."""
        return cls._of_parts(scheme, linear.in_features, scheme.encode(linear.weight.detach(), name), linear.bias)

    @classmethod
    def merged(cls, layers: "list[QuantizedLinear]") -> "QuantizedLinear":
        """One layer whose output channels are those of `layers`, with the same codes and scales.

        All have one scheme and width; all have a bias, or none: else `ValueError`. The result is not packed.
        """
        first = layers[0]
        if any((layer.scheme, layer.in_features) != (first.scheme, first.in_features) for layer in layers):
            found = ", ".join(f"{layer.scheme} of width {layer.in_features}" for layer in layers)
            raise ValueError(f"layers to merge have one scheme and one width, not {found}")
        each = [layer.parts() for layer in layers]
        parts = {name: torch.cat([part[name] for part in each]) for name in each[0]}
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        if len(biases) not in (0, len(layers)):
            raise ValueError(f"{len(biases)} of {len(layers)} layers to merge have a bias: all must, or none")
        bias = torch.cat(biases) if biases else None
        made = cls._of_parts(first.scheme, first.in_features, parts, bias)
        made.quantize_rows = first.quantize_rows
        return made

    @classmethod
    def _of_parts(cls, scheme: Scheme, in_features: int, parts: Parts, bias: Tensor | None) -> "QuantizedLinear":
        with torch.device("meta"):
            made = cls(in_features, len(parts["codes"]), scheme)
        made.hold(parts)
        made.bias = None if bias is None else frozen(bias.detach())
        return made

    # ---- storage -------------------------------------------------------------------------------------------------

    def parts(self) -> Parts:
        """The weight as its scheme stores it; views of the layer's memory where it is not packed otherwise."""
        return self.kernel.unpack(self)

    def held(self) -> Parts:
        """The parameters that the weight is in now, by name."""
        return {name: value.data for name, value in self.named_parameters() if name != "bias"}

    def hold(self, parts: Parts, packed: Any = None) -> None:
        """Keep the weight as these parameters, or as something opaque, in place of what holds it now."""
        for name in self.held():
            delattr(self, name)
        for name, part in parts.items():
            self.register_parameter(name, frozen(part))
        self.packed = packed

    def pack(self, device: Device, rows: torch.dtype) -> None:
        """Choose the kernel for rows of that dtype and put the weight into the storage that it wants.

        That is made on the device, of one layer at a time, and kept where the weight is.
        """
        self.unpack()
        home = self.codes.device
        kernel = choose(self, device, rows)
        self.hold(_moved(self.held(), device.torch_device))
        parts, packed = kernel.pack(self)
        self.hold(_moved(parts, home), packed)
        self.kernel = kernel

    def unpack(self) -> None:
        """Back to the scheme's own parts."""
        parts = self.parts()
        self.kernel = DEQUANTIZE
        self.hold(parts)

    def use_rounded_rows(self, yes: bool) -> None:
        """Whether to round each row of x to 8 bits too. Raises `OptionsError` for schemes without; `pack` next."""
        if yes and not isinstance(self.scheme, PerChannel):
            raise OptionsError(f"quantize_rows goes with int8 and fp8, and these weights are {self.scheme}")
        self.unpack()
        self.quantize_rows = yes

    def dequantize(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The weight `(out, in)` that is multiplied with; exact in float64."""
        return self.scheme.dequantize(self.parts(), self.in_features, dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as it is held, without the bias."""
        return sum(part.nbytes for part in self.held().values()) + self.kernel.opaque_bytes(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedLinear":
        """Move as told; but a change of dtype is for the bias alone, since codes and scales would lose bits."""
        bias = self.bias
        moved = {name: part.to(fn(part[:0]).device) for name, part in self.held().items()}
        self.hold(moved, self.packed)
        if bias is not None:
            self.bias = frozen(fn(bias.data))
        return self

    # ---- the product ---------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, in)` -> `(*lead, out)` in x's dtype."""
        if x.dim() != 2:
            return self.forward(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def multiply(self, rows: Tensor) -> Tensor:
        """The bare product of rows `(R, in)`, without the bias."""
        kernel = self.kernel if self.kernel.takes(rows) else DEQUANTIZE
        self.ran[kernel.name, rows.shape[0]] += 1
        return kernel.product(self, rows)

    def multiply_units(self, units: Tensor) -> Tensor:
        """The bare product of rows that `unit_rows` made, for kernels that take them; without the bias."""
        self.ran[self.kernel.name, units.shape[0]] += 1
        return self.kernel.product_of_units(self, units)

    def extra_repr(self) -> str:
        """For `print(model)`."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.scheme}, {self.kernel.name}"


def _moved(parts: Parts, device: torch.device) -> Parts:
    return {name: part.to(device) for name, part in parts.items()}


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter without gradient."""
    return nn.Parameter(tensor, requires_grad=False)
