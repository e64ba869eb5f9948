"""Choice: the kernel for a layer, by its scheme, the device and the dtype of rows."""

from typing import TYPE_CHECKING

import torch

from minfer.core.device import Device
from minfer.phase6.fbgemm import FbgemmHalf, FbgemmInt8
from minfer.phase6.kernels import DEQUANTIZE, Kernel
from minfer.phase6.packed_mm import Int4Pack, Int4PackCuda, Int8Pack, Int8PackCuda
from minfer.phase6.rounded_rows import IntMM, OneDnnInt8, ScaledMM

if TYPE_CHECKING:
    from minfer.phase6.quantized_linear import QuantizedLinear

KERNELS: tuple[Kernel, ...] = (
    *(FbgemmHalf(), FbgemmInt8(), OneDnnInt8(), Int8Pack(), Int4Pack()),
    *(Int8PackCuda(), Int4PackCuda(), IntMM(), ScaledMM()),
)
"""In the order of preference."""


def choose(layer: "QuantizedLinear", device: Device, rows: torch.dtype) -> Kernel:
    """The first kernel that serves this layer, and takes rows of that dtype; `Dequantize` takes what is left."""
    return next((one for one in KERNELS if rows in one.dtypes and one.serves(layer, device)), DEQUANTIZE)
