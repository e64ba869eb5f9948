"""Int4: two codes to a byte, in groups along the input, each with a scale and a zero point of 16 bits.

    w ≈ (code - 8) · scale + zero        code in 0 … 15; scale and zero in bfloat16

This is the grid that torch's int4 kernels multiply with, so packing for them rounds nothing a second time; bfloat16 has
float32's range, so tiny and huge groups need no scale beside. A byte holds the code of an even column in its low
nibble, that of the next column in its high one: codes 1, 2 are 0x21. The last group may be shorter; an odd width ends
with an empty nibble.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minfer.phase6.schemes import Parts, Scheme, divisor

MIDDLE, LARGEST = 8, 15
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class Int4(Scheme):
    """Asymmetric codes of 4 bits in groups of `group_size` columns."""

    group_size: int = 32
    name = "int4"
    formula = "0.5 + 4/group bytes: half a byte, and a bfloat16 scale and zero per group; last ones filled up"

    def __str__(self) -> str:
        return f"int4-g{self.group_size}"

    def groups(self, in_features: int) -> int:
        """Groups of a row."""
        return -(-in_features // self.group_size)

    def shapes(self, out_features: int, in_features: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Packed codes, and scale and zero `(out, groups)`."""
        grid = ((out_features, self.groups(in_features)), torch.bfloat16)
        return {"codes": ((out_features, -(-in_features // 2)), torch.uint8), "scale": grid, "zero": grid}

    def quantize(self, weight: Tensor) -> Parts:
        """Lay 16 steps over each group, from its least to its largest weight.

        `zero` is rounded first and the scale made to reach both ends from there, so that every weight is within half a
        step of its code, however far from 0 the group is.
        """
        grouped = self._grouped(weight)  # (out, groups, group_size)
        least, most = grouped.amin(-1), grouped.amax(-1)
        below = LARGEST - MIDDLE
        zero = (least + (most - least) * (MIDDLE / LARGEST)).bfloat16()
        wide = zero.to(weight.dtype)
        scale = torch.maximum((most - wide) / below, (wide - least) / MIDDLE).bfloat16()
        steps = (grouped - wide[..., None]) / divisor(scale).to(weight.dtype)[..., None]
        codes = (steps.round() + MIDDLE).clamp(0, LARGEST).to(torch.uint8)
        return {"codes": pack(codes.flatten(-2)[:, : weight.shape[1]]), "scale": scale, "zero": zero}

    def dequantize(self, parts: Parts, in_features: int, dtype: torch.dtype) -> Tensor:
        """(codes - 8) · scale + zero."""
        codes = self._grouped(unpack(parts["codes"], in_features).to(dtype))
        scale, zero = (parts[name].to(dtype)[..., None] for name in ("scale", "zero"))
        return ((codes - MIDDLE) * scale + zero).flatten(-2)[:, :in_features]

    def _grouped(self, rows: Tensor) -> Tensor:
        """`(out, in)` -> `(out, groups, group_size)`; a short last group is filled up with its own last column."""
        missing = self.groups(rows.shape[1]) * self.group_size - rows.shape[1]
        full = torch.cat([rows, rows[:, -1:].expand(-1, missing)], dim=1) if missing else rows
        return full.unflatten(-1, (-1, self.group_size))


def pack(codes: Tensor) -> Tensor:
    """Codes 0 … 15, uint8 `(out, in)` -> bytes, uint8 `(out, ⌈in/2⌉)`; the even column in the low nibble."""
    even = F.pad(codes, (0, codes.shape[1] % 2))
    return even[:, 0::2] | (even[:, 1::2] << 4)


def unpack(packed: Tensor, in_features: int) -> Tensor:
    """Bytes, uint8 `(out, ⌈in/2⌉)` -> codes, uint8 `(out, in)`."""
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)[:, :in_features]
