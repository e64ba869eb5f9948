"""Schemes: how the weight of a linear layer is stored in fewer bits, and what a weight of these bits is.

    fp16   w ≈ code                           code is a float16
    int8   w ≈ code · scale[channel]          code in -127 … 127
    fp8    w ≈ code · scale[channel]          code is a float8_e4m3fn, at most 448
    int4   w ≈ (code - 8) · scale[group] + zero[group]        see `int4.py`

Weights are `(out, in)`; a channel is a row of them. A scale belongs to one channel, or to a group of its columns, so
layers that are stacked along their channels keep their codes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from minfer.core.errors import CheckpointError

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


@dataclass(frozen=True)
class PerChannel(Scheme):
    """Symmetric codes up to `largest`, and a float32 scale for each output channel."""

    largest = 0.0
    dtype = torch.int8
    formula = "1 + 4/in bytes: a code, and a float32 scale per output channel"

    def shapes(self, out_features: int, in_features: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Codes and scale."""
        return {"codes": ((out_features, in_features), self.dtype), "scale": ((out_features,), torch.float32)}

    def quantize(self, weight: Tensor) -> Parts:
        """The largest weight of a channel becomes the largest code. Clamped: a scale can be too small to be exact."""
        scale = (weight.abs().amax(-1) / self.largest).float()
        steps = (weight / divisor(scale)[:, None]).clamp(-self.largest, self.largest)
        return {"codes": self.rounded(steps), "scale": scale}

    @abstractmethod
    def rounded(self, steps: Tensor) -> Tensor:
        """Codes nearest to numbers within ±`largest`."""

    def rounded_rows(self, rows: Tensor, largest: float = 0.0) -> tuple[Tensor, Tensor]:
        """rows `(R, in)` -> codes within ±`largest` (default: the scheme's), and the scale `(R, 1)` of each row.

        Both in float32 at least. A row's scale is its largest number's, whatever else is in the batch.
        """
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        scale = wide.abs().amax(-1, keepdim=True).div_(largest or self.largest)
        scale = scale.clamp_min_(torch.finfo(torch.float32).tiny)  # a row of zeros
        return self.numbers(self.rounded(wide / scale), wide.dtype), scale

    def numbers(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Codes in a wider dtype: the same numbers."""
        return codes.to(dtype)

    def dequantize(self, parts: Parts, in_features: int, dtype: torch.dtype) -> Tensor:
        """codes · scale."""
        return self.numbers(parts["codes"], dtype) * parts["scale"].to(dtype)[:, None]


@dataclass(frozen=True)
class Int8(PerChannel):
    """Integers of 8 bits, -128 left out so that the range is symmetric."""

    name = "int8"
    largest = 127.0
    dtype = torch.int8

    def rounded(self, steps: Tensor) -> Tensor:
        """To the nearest integer."""
        return steps.round().to(torch.int8)


@dataclass(frozen=True)
class Float8(PerChannel):
    """Floats of 8 bits: 4 of exponent, 3 of mantissa; beyond 448 the cast gives NaN."""

    name = "fp8"
    largest = 448.0
    dtype = torch.float8_e4m3fn

    def rounded(self, steps: Tensor) -> Tensor:
        """To the nearest float8."""
        return steps.float().to(torch.float8_e4m3fn)

    def numbers(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """As for all; on a CPU, where torch takes several nanoseconds to convert one, out of a table of all 256."""
        if codes.device.type != "cpu":
            return super().numbers(codes, dtype)
        table = torch.arange(256, dtype=torch.uint8).view(self.dtype).to(dtype)
        return table.index_select(0, codes.view(torch.uint8).flatten().int()).view(codes.shape)


def finite(weight: Tensor, name: str) -> Tensor:
    """`weight` in float64. Raises `CheckpointError` if it holds NaN or infinity."""
    wide = weight.double()
    if not bool(wide.isfinite().all()):
        raise CheckpointError(f"{name} holds NaN or infinity: there is no scale for it")
    return wide


def divisor(scale: Tensor) -> Tensor:
    """`scale` where something can be divided by it; 1 where it is 0, since all that it scales is 0."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)
