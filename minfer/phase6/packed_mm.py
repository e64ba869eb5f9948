"""torch's products of bfloat16 rows with packed weights of 8 and 4 bits, on CPUs and on cards.

Rows in other dtypes do not come here: the kernels would round them to bfloat16, or are slow.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minfer.core.device import Device
from minfer.phase6.int4 import MIDDLE, Int4, pack, unpack
from minfer.phase6.kernels import Kernel
from minfer.phase6.schemes import Int8, Parts

if TYPE_CHECKING:
    from minfer.phase6.quantized_linear import QuantizedLinear

aten = torch.ops.aten


def available(name: str, device: Device) -> bool:
    """Whether this torch has the operator `aten::name` for that kind of device."""
    key = device.torch_device.type.upper()
    return hasattr(aten, name) and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)


class Int8Pack(Kernel):
    """Codes widened in registers; for few rows: from some on, widening them once for all rows is faster (measured)."""

    name = "int8pack"
    dtypes = (torch.bfloat16,)
    most_rows = 4
    place = "cpu"

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """int8, rows left alone; on CPUs other widths than multiples of 32 would read beyond the weight."""
        fits = isinstance(layer.scheme, Int8) and not layer.quantize_rows and layer.in_features % 32 == 0
        return fits and device.torch_device.type == self.place and available("_weight_int8pack_mm", device)

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """Scales are put on afterwards: the operator would take them in bfloat16 only."""
        ones = rows.new_ones(layer.out_features)
        made = aten._weight_int8pack_mm(rows, layer.codes, ones)
        return (made * layer.scale).to(rows.dtype)


class Int8PackCuda(Int8Pack):
    """The same on a card."""

    most_rows = 16
    place = "cuda"


class Int4Pack(Kernel):
    """Codes in an order of the kernel's own, unpacked in registers; scale and zero side by side, in bfloat16.

    `unpack` reads the codes through the kernel: what it multiplies the unit matrix with, at scale 1.
    """

    name = "int4pack"
    dtypes = (torch.bfloat16,)
    place = "cpu"
    operators: tuple[str, ...] = ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """int4 in whole groups, and in the multiples that the operators want."""
        scheme = layer.scheme
        if not isinstance(scheme, Int4) or device.torch_device.type != self.place:
            return False
        fits = layer.in_features % scheme.group_size == 0 and layer.out_features % 16 == 0
        return fits and all(available(name, device) for name in self.operators)

    def pack(self, layer: "QuantizedLinear") -> tuple[Parts, Any]:
        """`(groups, out, 2)` of scale and zero beside the codes."""
        parts = layer.held()
        grid = torch.stack([parts["scale"].t(), parts["zero"].t()], dim=-1).contiguous()
        return {"codes": self.reordered(parts["codes"], layer), "grid": grid}, None

    def reordered(self, codes: Tensor, layer: "QuantizedLinear") -> Tensor:
        """The scheme's bytes as the kernel wants them."""
        return aten._convert_weight_to_int4pack_for_cpu(unpack(codes, layer.in_features).int(), 1)

    def multiply(self, rows: Tensor, layer: "QuantizedLinear", grid: Tensor) -> Tensor:
        """The operator itself."""
        return aten._weight_int4pack_mm_for_cpu(rows, layer.codes, layer.in_features // len(grid), grid)

    def unpack(self, layer: "QuantizedLinear") -> Parts:
        """Exact: numbers from -8 to 7 and zeros are in bfloat16."""
        scale, zero = layer.grid.data.permute(2, 1, 0)
        plain = torch.stack([torch.ones_like(scale.t()), torch.zeros_like(zero.t())], dim=-1)
        unit = torch.eye(layer.in_features, dtype=torch.bfloat16, device=scale.device)
        codes = (self.multiply(unit, layer, plain).t() + MIDDLE).to(torch.uint8)
        return {"codes": pack(codes), "scale": scale.contiguous(), "zero": zero.contiguous()}

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """One operator."""
        return self.multiply(rows.contiguous(), layer, layer.grid)


class Int4PackCuda(Int4Pack):
    """The same on a card, from Ampere on; its operator wants the even column in the high nibble."""

    place = "cuda"
    operators = ("_convert_weight_to_int4pack", "_weight_int4pack_mm")

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """As on a CPU, with tiles of 32 columns."""
        return super().serves(layer, device) and device.capability >= (8, 0)

    def reordered(self, codes: Tensor, layer: "QuantizedLinear") -> Tensor:
        """The scheme's bytes with their nibbles swapped, in tiles of as many columns as fit the width."""
        tiles = next(count for count in (8, 4, 2) if layer.in_features % (16 * count) == 0)
        return aten._convert_weight_to_int4pack((codes << 4) | (codes >> 4), tiles)

    def multiply(self, rows: Tensor, layer: "QuantizedLinear", grid: Tensor) -> Tensor:
        """The operator itself."""
        return aten._weight_int4pack_mm(rows, layer.codes, layer.in_features // len(grid), grid)
