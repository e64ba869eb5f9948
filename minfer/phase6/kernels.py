"""Kernels: the ways to multiply rows with a quantised weight. Each says what it serves and how it wants the weight.

This file has the one that serves everywhere: make the weight again in the rows' dtype and multiply.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minfer.core.device import Device
from minfer.phase6.schemes import Parts, PerChannel

if TYPE_CHECKING:
    from minfer.phase6.quantized_linear import QuantizedLinear


class Kernel(ABC):
    """One way to multiply. `name` is shown to users; `dtypes` are those of rows that it takes, `most_rows` how many."""

    name = ""
    dtypes: tuple[torch.dtype, ...] = ()
    most_rows: int | None = None

    @abstractmethod
    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """Whether this device, torch and shape have it."""

    @abstractmethod
    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """rows `(R, in)` -> `(R, out)` in their dtype, without the bias."""

    def product_of_units(self, layer: "QuantizedLinear", units: Tensor) -> Tensor:
        """The product of rows that `unit_rows` has made."""
        return self.product(layer, units)

    def bind(self, layer: "QuantizedLinear") -> Callable[[Tensor], Tensor]:
        """`layer.multiply`, or a faster function that does the same, for whoever calls it many times.

        It must stay right when the layer is unpacked later on.
        """
        return layer.multiply

    def takes(self, rows: Tensor) -> bool:
        """Whether to multiply these rows with it; the others go to `Dequantize`."""
        count = rows.shape[0]
        return rows.dtype in self.dtypes and 0 < count <= (self.most_rows or count)

    def pack(self, layer: "QuantizedLinear") -> tuple[Parts, Any]:
        """What this kernel multiplies with, made of the scheme's parts, which the layer holds: tensors, and others."""
        return layer.held(), None

    def unpack(self, layer: "QuantizedLinear") -> Parts:
        """The scheme's parts again."""
        return layer.held()

    def opaque_bytes(self, layer: "QuantizedLinear") -> int:
        """Bytes of the layer's weight that are in no tensor."""
        return 0


class Dequantize(Kernel):
    """The weight made again in the rows' dtype, and multiplied as any other. A channel's scale is put on the result.

    In float64 it is the definition of what the layer computes.
    """

    name = "dequantize"
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """Everywhere."""
        return True

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """F.linear with the dequantised weight."""
        if layer.quantize_rows:
            codes, scale = layer.scheme.rounded_rows(rows)
            return (self._exact(layer, codes) * scale).to(rows.dtype)
        return self._exact(layer, rows)

    def _exact(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        parts, wide = layer.parts(), torch.promote_types(rows.dtype, torch.float32)
        if not isinstance(layer.scheme, PerChannel) or rows.dtype in (torch.float64, torch.float16):
            return F.linear(rows, layer.scheme.dequantize(parts, layer.in_features, wide).to(rows.dtype))
        codes = layer.scheme.numbers(parts["codes"], rows.dtype)  # exact in bfloat16 too; sums would not be in float16
        made = F.linear(rows, codes)
        return (made * parts["scale"]).to(rows.dtype)


DEQUANTIZE = Dequantize()
