"""Products of 8 bits on both sides: each row of x is rounded by a scale of its own, and the sums are exact."""

import platform
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minfer.core.device import Device
from minfer.phase6.fbgemm import has_vnni
from minfer.phase6.kernels import Kernel
from minfer.phase6.packed_mm import aten, available
from minfer.phase6.schemes import Float8, Int8, Parts

if TYPE_CHECKING:
    from minfer.phase6.quantized_linear import QuantizedLinear


class OneDnnInt8(Kernel):
    """oneDNN's int8 product on x86; sums in int32. It pads little, where FBGEMM would pad much.

    Without VNNI it adds pairs of products in 16 bits, as FBGEMM does: rows have 7 bits then.
    """

    name = "onednn int8"
    dtypes = (torch.float32, torch.bfloat16)
    operators = ("qlinear_prepack", "qlinear_pointwise")

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """int8 with quantised rows on an x86 CPU, where torch has oneDNN."""
        if device.torch_device.type != "cpu" or platform.machine().lower() not in ("x86_64", "amd64"):
            return False
        fits = isinstance(layer.scheme, Int8) and layer.quantize_rows and torch.backends.mkldnn.is_available()
        return fits and all(hasattr(torch.ops.onednn, name) for name in self.operators)

    def pack(self, layer: "QuantizedLinear") -> tuple[Parts, Any]:
        """Codes in oneDNN's order."""
        parts = layer.held()
        return {"scale": parts["scale"]}, torch.ops.onednn.qlinear_prepack(parts["codes"], None)

    def unpack(self, layer: "QuantizedLinear") -> Parts:
        """Codes in their own order again."""
        return {"codes": layer.packed.to_dense().t().contiguous(), "scale": layer.scale.data}

    def opaque_bytes(self, layer: "QuantizedLinear") -> int:
        """A byte a weight, in blocks of 64 by 64; behind them, unseen, the sum of each channel's codes."""
        channels, columns = (-(-size // 64) * 64 for size in (layer.out_features, layer.in_features))
        return channels * (columns + 4)

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """Rows become unsigned, with 0 in the middle, as the instruction wants them."""
        largest = 127 if has_vnni() else 63
        steps, row_scale = layer.scheme.rounded_rows(rows, largest)
        unsigned = steps.add_(largest + 1).to(torch.uint8)
        zeros = torch.zeros(layer.out_features, dtype=torch.int32)
        made = torch.ops.onednn.qlinear_pointwise(
            *(unsigned, 1.0, largest + 1, layer.packed, layer.scale, zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return made.mul_(row_scale).to(rows.dtype)


class IntMM(Kernel):
    """A card's int8 product; sums in int32."""

    name = "int_mm"
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    least_rows = 32
    """The operator wants more than 16 rows, in multiples of 8 on some cards: fewer are filled up with zeros."""

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """int8 with quantised rows on a card; both sides of the weight are multiples of 8."""
        fits = isinstance(layer.scheme, Int8) and layer.quantize_rows and device.torch_device.type == "cuda"
        return fits and layer.in_features % 8 == layer.out_features % 8 == 0 and available("_int_mm", device)

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """Integers times integers, then both scales."""
        steps, row_scale = layer.scheme.rounded_rows(rows)
        missing = -len(rows) % self.least_rows
        made = aten._int_mm(F.pad(steps.to(torch.int8), (0, 0, 0, missing)), layer.codes.t())[: len(rows)]
        return (made * row_scale * layer.scale).to(rows.dtype)


class ScaledMM(Kernel):
    """A card's float8 product; sums in float32."""

    name = "scaled_mm"
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    tile = 16

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """fp8 with quantised rows on cards that have it: Ada, Hopper and later."""
        if not (isinstance(layer.scheme, Float8) and layer.quantize_rows) or device.capability < (8, 9):
            return False
        return layer.in_features % 16 == layer.out_features % 16 == 0 and available("_scaled_mm", device)

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """The operator's own scales are 1: those of rows and channels are put on its float32 result."""
        codes, row_scale = layer.scheme.rounded_rows(rows)
        full = F.pad(codes, (0, 0, 0, -len(rows) % self.tile)).to(torch.float8_e4m3fn)
        one = row_scale.new_ones(())
        made = aten._scaled_mm(full, layer.codes.t(), one, one, out_dtype=torch.float32)[: len(rows)]
        return (made * row_scale * layer.scale).to(rows.dtype)
