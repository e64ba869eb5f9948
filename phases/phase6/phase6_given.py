"""Phase 6, Quantization: what its starter needs, and no task is about."""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.device import Device
from minfer.core.errors import CheckpointError

# ==== phase6/schemes.py =============================================================================================
# Schemes: how the weight of a linear layer is stored in fewer bits, and what a weight of these bits is.
#
#     fp16   w ≈ code                           code is a float16
#     int8   w ≈ code · scale[channel]          code in -127 … 127
#     fp8    w ≈ code · scale[channel]          code is a float8_e4m3fn, at most 448
#     int4   w ≈ (code - 8) · scale[group] + zero[group]        see `int4.py`
#
# Weights are `(out, in)`; a channel is a row of them. A scale belongs to one channel, or to a group of its columns, so
# layers that are stacked along their channels keep their codes.


CHANNELS = 128
"""Output channels that are quantised at once."""

Parts = dict[str, Tensor]
"""The tensors that a weight is stored as, by name: codes and what scales them. Each has a row per channel."""


@dataclass(frozen=True)
class Scheme(ABC):
    """A format of weights. `name` is what options and files call it; `formula` says how many bytes a weight takes."""

    name = ""
    formula = ""

    @abstractmethod
    def shapes(self, out_features: int, in_features: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each part of a weight `(out, in)`."""

    @abstractmethod
    def quantize(self, weight: Tensor) -> Parts:
        """Parts of a finite weight `(out, in)` in float64."""

    def encode(self, weight: Tensor, name: str = "a weight") -> Parts:
        """Parts of a weight `(out, in)` of any float dtype: equal weights have equal parts, whatever their dtype.

        Some channels at a time, since it is computed in float64. Raises `CheckpointError` that names a weight which is
        not finite, or too large for fp16.
        """
        each = [self.quantize(finite(block, name)) for block in weight.split(CHANNELS)]
        return each[0] if len(each) == 1 else {part: torch.cat([one[part] for one in each]) for part in each[0]}

    @abstractmethod
    def dequantize(self, parts: Parts, in_features: int, dtype: torch.dtype) -> Tensor:
        """The weight `(out, in)` that the parts stand for; exact in float64."""

    def rounded_rows(self, rows: Tensor, largest: float = 0.0) -> tuple[Tensor, Tensor]:
        """Rows of x in the codes of this scheme; only those with a scale per channel have it."""
        raise TypeError(f"{self} has no form for rows")

    def __str__(self) -> str:
        return self.name

    def nbytes(self, out_features: int, in_features: int) -> int:
        """Bytes of all parts of a weight `(out, in)`."""
        shapes = self.shapes(out_features, in_features).values()
        return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes)


@dataclass(frozen=True)
class Half(Scheme):
    """Weights in float16. What float16 cannot hold is refused: it would be infinite."""

    name = "fp16"
    formula = "2 bytes"

    def shapes(self, out_features: int, in_features: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Codes only."""
        return {"codes": ((out_features, in_features), torch.float16)}

    def quantize(self, weight: Tensor) -> Parts:
        """Round to float16. Raises `CheckpointError` for what becomes infinite."""
        codes = weight.half()
        if not bool(codes.isfinite().all()):
            raise CheckpointError(
                f"a weight of {float(weight.abs().max()):g} is beyond float16's 65504: use int8 or fp8"
            )
        return {"codes": codes}

    def dequantize(self, parts: Parts, in_features: int, dtype: torch.dtype) -> Tensor:
        """The codes themselves."""
        return parts["codes"].to(dtype)


def finite(weight: Tensor, name: str) -> Tensor:
    """`weight` in float64. Raises `CheckpointError` if it holds NaN or infinity."""
    wide = weight.double()
    if not bool(wide.isfinite().all()):
        raise CheckpointError(f"{name} holds NaN or infinity: there is no scale for it")
    return wide


def divisor(scale: Tensor) -> Tensor:
    """`scale` where something can be divided by it; 1 where it is 0, since all that it scales is 0."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)


# ==== phase6/fbgemm.py ==============================================================================================
# FBGEMM's products on x86: float16 weights with float32 rows, and 8-bit weights with 8-bit rows.
#
# The weight is in an object of torch that shows no memory: `opaque_bytes` counts it as FBGEMM lays it out.


ENGINE = "fbgemm"
MOST_PADDING = 2.0
"""The packed int8 weight may take this many times the bytes of the scheme's codes: other kernels are half as fast on
few rows."""


def padded(out_features: int, in_features: int, block: int) -> int:
    """Numbers that FBGEMM stores for a weight: in blocks of 512 columns and `block` channels, seen on AVX-512."""
    return -(-out_features // block) * block * -(-in_features // 512) * 512


def call(operator: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """An operator that takes a packed weight.

    torch asks each argument whether it overrides functions, and a packed weight answers with an exception in C++: that
    takes 8 µs, as long as a product of some hundred thousand weights. So it is told not to ask.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return operator(*arguments)


def bare(operator: Any) -> Callable[..., Tensor]:
    """The default overload of an operator without its shell in Python, where this torch shows it: that takes 1 µs."""
    overload = operator.default
    return getattr(overload, "_op", overload)


def unit_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `(*, in)` divided by their largest numbers, and these, `(*, 1)`; both in float32."""
    wide = rows.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)  # of zeros: not 0 / 0
    return wide / largest, largest


@cache
def has_vnni() -> bool:
    """Whether the CPU adds products of 8 bits in 32 bits at once (AVX-512 VNNI)."""
    probes = ("_is_vnni_supported", "_is_avx512_vnni_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


@contextmanager
def fbgemm() -> Iterator[None]:
    """In this context torch's quantised operators are FBGEMM's; no notice that these will move."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"torch\.quantize_per_tensor.*", category=UserWarning)
            yield
    finally:
        torch.backends.quantized.engine = before


# ==== phase6/int4.py ================================================================================================
# Int4: two codes to a byte, in groups along the input, each with a scale and a zero point of 16 bits.
#
#     w ≈ (code - 8) · scale + zero        code in 0 … 15; scale and zero in bfloat16
#
# This is the grid that torch's int4 kernels multiply with, so packing for them rounds nothing a second time; bfloat16 has
# float32's range, so tiny and huge groups need no scale beside. A byte holds the code of an even column in its low
# nibble, that of the next column in its high one: codes 1, 2 are 0x21. The last group may be shorter; an odd width ends
# with an empty nibble.


MIDDLE, LARGEST = 8, 15
GROUP_SIZES = (32, 64, 128)


# ==== phase6/packed_mm.py ===========================================================================================
# torch's products of bfloat16 rows with packed weights of 8 and 4 bits, on CPUs and on cards.
#
# Rows in other dtypes do not come here: the kernels would round them to bfloat16, or are slow.


aten = torch.ops.aten


def available(name: str, device: Device) -> bool:
    """Whether this torch has the operator `aten::name` for that kind of device."""
    key = device.torch_device.type.upper()
    return hasattr(aten, name) and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)


# ==== phase6/quantized_linear.py ====================================================================================
# QuantizedLinear: y = x·Wᵀ + b, with W in the storage of a scheme, or in the one that a kernel wants.


def _moved(parts: Parts, device: torch.device) -> Parts:
    return {name: part.to(device) for name, part in parts.items()}


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter without gradient."""
    return nn.Parameter(tensor, requires_grad=False)


# ==== phase6/conversion.py ==========================================================================================
# Conversion: a model's linear layers become quantised ones, one after another.


HEAD = "lm_head"


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that has the submodule or parameter `name`, and its name there."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def untie(model: Any) -> None:
    """Let the model's config say that the head is no longer the embedding."""
    model.config = replace(model.config, tie_word_embeddings=False)


# ==== phase6/engine.py ==============================================================================================
# Phase 6's change: `prepare_model` exchanges linear layers for quantised ones; `build_model` reads stored ones.


@dataclass
class KernelUse:
    """What one kernel serves: the names of layers, and how often it ran, by the number of rows."""

    layers: list[str] = field(default_factory=list)
    ran: Counter[int] = field(default_factory=Counter)
