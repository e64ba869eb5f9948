"""Phase 6, Quantization: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 30 points. A scale for each channel: PerChannel.quantize, PerChannel.dequantize, Int8.rounded
Task 2, 22 points. Four bits in groups: Int4.quantize, Int4.dequantize, pack, unpack
Task 3, 25 points. A layer that multiplies: QuantizedLinear.forward, QuantizedLinear.merged, PerChannel.rounded_rows
Task 4, 23 points. Exchange the layers: convert, linear_names, Engine.prepare_model

Copy it (`minfer start 6`), write, then look what is right: `minfer check 6`, or
`pytest tests/phase6 --engine work/phase6.py`. Hints: `minfer hint 6 1`.
It builds on the reference of phase 5; to build on your own, import that instead.
"""

import platform
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from phase6_given import (
    ENGINE,
    GROUP_SIZES,
    HEAD,
    LARGEST,
    MIDDLE,
    MOST_PADDING,
    Half,
    KernelUse,
    Parts,
    Scheme,
    _moved,
    aten,
    available,
    bare,
    call,
    divisor,
    fbgemm,
    frozen,
    has_vnni,
    owner_of,
    padded,
    unit_rows,
    untie,
)
from torch import Tensor, nn

from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.errors import OptionsError, did_you_mean
from minfer.core.gpt2 import GPT2
from minfer.core.model import Transformer
from minfer.core.models import skeleton
from minfer.core.options import EngineOptions, option
from minfer.core.stored_quantization import PARTS, StoredQuantization
from minfer.phase5 import Engine as Phase5Engine
from minfer.phase5 import PagedOptions

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
        raise NotImplementedError("P6 task 1: PerChannel.quantize")

    @abstractmethod
    def rounded(self, steps: Tensor) -> Tensor:
        """Codes nearest to numbers within ±`largest`."""

    def rounded_rows(self, rows: Tensor, largest: float = 0.0) -> tuple[Tensor, Tensor]:
        """rows `(R, in)` -> codes within ±`largest` (default: the scheme's), and the scale `(R, 1)` of each row.

        Both in float32 at least. A row's scale is its largest number's, whatever else is in the batch.
        """
        raise NotImplementedError("P6 task 3: PerChannel.rounded_rows")

    def numbers(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Codes in a wider dtype: the same numbers."""
        return codes.to(dtype)

    def dequantize(self, parts: Parts, in_features: int, dtype: torch.dtype) -> Tensor:
        """codes · scale."""
        raise NotImplementedError("P6 task 1: PerChannel.dequantize")


@dataclass(frozen=True)
class Int8(PerChannel):
    """Integers of 8 bits, -128 left out so that the range is symmetric."""

    name = "int8"
    largest = 127.0
    dtype = torch.int8

    def rounded(self, steps: Tensor) -> Tensor:
        """To the nearest integer."""
        raise NotImplementedError("P6 task 1: Int8.rounded")


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


# ==== phase6/kernels.py =============================================================================================
# Kernels: the ways to multiply rows with a quantised weight. Each says what it serves and how it wants the weight.
#
# This file has the one that serves everywhere: make the weight again in the rows' dtype and multiply.


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


# ==== phase6/fbgemm.py ==============================================================================================
# FBGEMM's products on x86: float16 weights with float32 rows, and 8-bit weights with 8-bit rows.
#
# The weight is in an object of torch that shows no memory: `opaque_bytes` counts it as FBGEMM lays it out.


class Fbgemm(Kernel):
    """What both have in common. Rows in bfloat16 are converted: no bit of them is lost."""

    dtypes = (torch.float32, torch.bfloat16)
    operators: tuple[str, ...] = ()

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """An x86 CPU, and a torch that has the operators."""
        if device.torch_device.type != "cpu" or ENGINE not in torch.backends.quantized.supported_engines:
            return False
        return all(hasattr(torch.ops.quantized, name) for name in self.operators)


class FbgemmHalf(Fbgemm):
    """float16 weights, widened in registers, by float32 rows; sums in float32."""

    name = "fbgemm fp16"
    operators = ("linear_prepack_fp16", "linear_unpack_fp16", "linear_dynamic_fp16")

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """As all of FBGEMM, for fp16; not where padding would make it as large as float32."""
        small = self.opaque_bytes(layer) < 4 * layer.out_features * layer.in_features
        return isinstance(layer.scheme, Half) and small and super().serves(layer, device)

    def pack(self, layer: "QuantizedLinear") -> tuple[Parts, Any]:
        """Into FBGEMM's own layout."""
        with fbgemm():
            return {}, torch.ops.quantized.linear_prepack_fp16(layer.held()["codes"].float(), None)

    def unpack(self, layer: "QuantizedLinear") -> Parts:
        """Every float16 comes back as it was."""
        with fbgemm():
            return {"codes": torch.ops.quantized.linear_unpack_fp16(layer.packed)[0].half()}

    def opaque_bytes(self, layer: "QuantizedLinear") -> int:
        """2 bytes a weight, padded."""
        return 2 * padded(layer.out_features, layer.in_features, 32)

    def bind(self, layer: "QuantizedLinear") -> Callable[[Tensor], Tensor]:
        """Without the 8 µs that `layer.multiply` takes to come to the operator.

        A step of one row has a hundred products of some 50 µs.
        """
        return partial(self._multiply, layer, bare(torch.ops.quantized.linear_dynamic_fp16))

    def _multiply(self, layer: "QuantizedLinear", multiply: Callable[..., Tensor], rows: Tensor) -> Tensor:
        packed, count = layer.packed, rows.shape[0]
        if packed is None or rows.dtype is not torch.float32 or count == 0:  # unpacked, or not for this operator
            return layer.multiply(rows)
        layer.ran[self.name, count] += 1
        with torch._C.DisableTorchFunctionSubclass():  # as in `call`
            return multiply(rows, packed)

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """One operator."""
        wide = rows.float()
        made = call(torch.ops.quantized.linear_dynamic_fp16.default, wide, layer.packed)
        return made if wide is rows else made.to(rows.dtype)


class FbgemmInt8(Fbgemm):
    """8-bit weights by rows that are rounded to 8 bits, each by its largest number; sums in int32.

    Without VNNI the instruction adds pairs of products in 16 bits, which 8-bit rows overflow: they get 7 bits there.
    """

    name = "fbgemm int8"
    operators = ("linear_prepack", "linear_unpack", "linear_with_input_q_dq_qweight_dq_output_fp32")

    def serves(self, layer: "QuantizedLinear", device: Device) -> bool:
        """As all of FBGEMM, for int8 with quantised rows, unless most of what it stores would be padding."""
        stored = padded(layer.out_features, layer.in_features, 48)
        small = stored <= MOST_PADDING * layer.out_features * layer.in_features
        return isinstance(layer.scheme, Int8) and layer.quantize_rows and small and super().serves(layer, device)

    def pack(self, layer: "QuantizedLinear") -> tuple[Parts, Any]:
        """Into FBGEMM's own layout."""
        held = layer.held()
        zeros = torch.zeros(layer.out_features, dtype=torch.long)
        with fbgemm():
            weight = torch._make_per_channel_quantized_tensor(held["codes"], held["scale"].double(), zeros, 0)
            return {}, torch.ops.quantized.linear_prepack(weight, None)

    def unpack(self, layer: "QuantizedLinear") -> Parts:
        """Codes and scales come back as they were."""
        with fbgemm():
            weight = torch.ops.quantized.linear_unpack(layer.packed)[0]
        return {"codes": weight.int_repr(), "scale": weight.q_per_channel_scales().float()}

    def opaque_bytes(self, layer: "QuantizedLinear") -> int:
        """A byte a weight, padded; for each channel its scale, its zero point and the sum of its codes."""
        return padded(layer.out_features, layer.in_features, 48) + 12 * layer.out_features

    def product(self, layer: "QuantizedLinear", rows: Tensor) -> Tensor:
        """Rows divided by their largest number, multiplied, and multiplied by it again."""
        units, largest = unit_rows(rows)
        return (self.product_of_units(layer, units) * largest).to(rows.dtype)

    def product_of_units(self, layer: "QuantizedLinear", units: Tensor) -> Tensor:
        """Rows of float32 within ±1, rounded and multiplied."""
        steps = 127 if has_vnni() else 63
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        return call(multiply, units, 1 / steps, steps + 1, layer.packed)


# ==== phase6/int4.py ================================================================================================
# Int4: two codes to a byte, in groups along the input, each with a scale and a zero point of 16 bits.
#
#     w ≈ (code - 8) · scale + zero        code in 0 … 15; scale and zero in bfloat16
#
# This is the grid that torch's int4 kernels multiply with, so packing for them rounds nothing a second time; bfloat16 has
# float32's range, so tiny and huge groups need no scale beside. A byte holds the code of an even column in its low
# nibble, that of the next column in its high one: codes 1, 2 are 0x21. The last group may be shorter; an odd width ends
# with an empty nibble.


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
        raise NotImplementedError("P6 task 2: Int4.quantize")

    def dequantize(self, parts: Parts, in_features: int, dtype: torch.dtype) -> Tensor:
        """(codes - 8) · scale + zero."""
        raise NotImplementedError("P6 task 2: Int4.dequantize")

    def _grouped(self, rows: Tensor) -> Tensor:
        """`(out, in)` -> `(out, groups, group_size)`; a short last group is filled up with its own last column."""
        missing = self.groups(rows.shape[1]) * self.group_size - rows.shape[1]
        full = torch.cat([rows, rows[:, -1:].expand(-1, missing)], dim=1) if missing else rows
        return full.unflatten(-1, (-1, self.group_size))


def pack(codes: Tensor) -> Tensor:
    """Codes 0 … 15, uint8 `(out, in)` -> bytes, uint8 `(out, ⌈in/2⌉)`; the even column in the low nibble."""
    raise NotImplementedError("P6 task 2: pack")


def unpack(packed: Tensor, in_features: int) -> Tensor:
    """Bytes, uint8 `(out, ⌈in/2⌉)` -> codes, uint8 `(out, in)`."""
    raise NotImplementedError("P6 task 2: unpack")


# ==== phase6/packed_mm.py ===========================================================================================
# torch's products of bfloat16 rows with packed weights of 8 and 4 bits, on CPUs and on cards.
#
# Rows in other dtypes do not come here: the kernels would round them to bfloat16, or are slow.


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


# ==== phase6/rounded_rows.py ========================================================================================
# Products of 8 bits on both sides: each row of x is rounded by a scale of its own, and the sums are exact.


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


# ==== phase6/choice.py ==============================================================================================
# Choice: the kernel for a layer, by its scheme, the device and the dtype of rows.


KERNELS: tuple[Kernel, ...] = (
    *(FbgemmHalf(), FbgemmInt8(), OneDnnInt8(), Int8Pack(), Int4Pack()),
    *(Int8PackCuda(), Int4PackCuda(), IntMM(), ScaledMM()),
)
"""In the order of preference."""


def choose(layer: "QuantizedLinear", device: Device, rows: torch.dtype) -> Kernel:
    """The first kernel that serves this layer, and takes rows of that dtype; `Dequantize` takes what is left."""
    return next((one for one in KERNELS if rows in one.dtypes and one.serves(layer, device)), DEQUANTIZE)


# ==== phase6/quantized_linear.py ====================================================================================
# QuantizedLinear: y = x·Wᵀ + b, with W in the storage of a scheme, or in the one that a kernel wants.


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
        raise NotImplementedError("P6 task 3: QuantizedLinear.merged")

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
        raise NotImplementedError("P6 task 3: QuantizedLinear.forward")

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


# ==== phase6/conversion.py ==========================================================================================
# Conversion: a model's linear layers become quantised ones, one after another.


def convert(model: nn.Module, scheme: Scheme, quantize_head: bool = False) -> None:
    """Exchange every `nn.Linear` of `model` for a quantised one, but not the head unless asked.

    Embeddings and norms stay. A head that is tied to the embedding gets a weight of its own, and the config says so.
    Beside the result there is at most one layer's weight in memory. Raises `OptionsError` for a model that is quantised
    with another scheme already.
    """
    raise NotImplementedError("P6 task 4: convert")


def linear_names(model: nn.Module, with_head: bool) -> list[str]:
    """The names of the plain linear layers; names only, so that a layer that was exchanged is not kept."""
    raise NotImplementedError("P6 task 4: linear_names")


def quantized_layers(model: nn.Module) -> dict[str, QuantizedLinear]:
    """The quantised layers by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


# ==== phase6/names.py ===============================================================================================
# Names of schemes, as options and files give them.


SCHEMES: dict[str, Callable[[int], Scheme]] = {
    "fp16": lambda group_size: Half(),
    "int8": lambda group_size: Int8(),
    "int4": Int4,
    "fp8": lambda group_size: Float8(),
}
"""Name -> the scheme, given the group size that only int4 uses."""


def find_scheme(name: str, group_size: int = GROUP_SIZES[0]) -> Scheme:
    """The scheme of that name. Raises `OptionsError` that lists them, or the group sizes."""
    if name not in SCHEMES:
        raise OptionsError(
            f"quantization {name!r} is unknown{did_you_mean(str(name), SCHEMES, 1)}: use {', '.join(SCHEMES)}"
        )
    if group_size not in GROUP_SIZES:
        raise OptionsError(f"group_size = {group_size!r}: use {', '.join(map(str, GROUP_SIZES))}")
    return SCHEMES[name](group_size)


# ==== phase6/stored.py ==============================================================================================
# Models that are stored quantised: built on `meta`, and filled with the codes as they are in the files.


def quantized_skeleton(checkpoint: Checkpoint) -> Transformer | GPT2:
    """The model of a checkpoint that is stored quantised, with its quantised layers; parameters have shapes only."""
    model, stored = skeleton(checkpoint), checkpoint.config.quantization
    assert stored is not None
    exchange_hollow(model, stored)
    return model


def exchange_hollow(model: nn.Module, stored: StoredQuantization) -> None:
    """Exchange the linear layers of a hollow model for quantised ones that are as hollow."""
    scheme = find_scheme(stored.scheme, stored.group_size)
    with torch.device("meta"):
        for name in linear_names(model, stored.quantize_head):
            owner, leaf = owner_of(model, name)
            plain = getattr(owner, leaf)
            bias = plain.bias is not None
            setattr(owner, leaf, QuantizedLinear(plain.in_features, plain.out_features, scheme, bias))


def build_stored(checkpoint: Checkpoint, dtype: torch.dtype, home: Callable[[str], torch.device]) -> nn.Module:
    """The model, parameters at home: codes and scales as stored, the rest in `dtype`. Raises `CheckpointError`."""
    model = quantized_skeleton(checkpoint)
    for name, source in checkpoint.plan(model).items():
        owner, leaf = owner_of(model, name)
        setattr(owner, leaf, frozen(source.read(None if leaf in PARTS else dtype, home(name))))
    model.tie()
    model.make_tables()
    return model


# ==== phase6/engine.py ==============================================================================================
# Phase 6's change: `prepare_model` exchanges linear layers for quantised ones; `build_model` reads stored ones.


@dataclass(frozen=True)
class QuantizationOptions(PagedOptions):
    """Phase 6's options."""

    quantization: str | None = option(None, f"weights of linear layers: {', '.join(SCHEMES)}; default: as they are")
    group_size: int = option(32, f"int4: columns that share a scale: {', '.join(map(str, GROUP_SIZES))}")
    quantize_rows: bool = option(False, "int8, fp8: round each row of a product's input to 8 bits too")
    quantize_head: bool = option(False, "quantise the head too; a tied one gets a weight of its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantization is not None or self.group_size != 32:
            find_scheme(self.quantization or "int4", self.group_size)
        if self.quantize_rows and self.quantization not in (None, "int8", "fp8"):
            raise OptionsError(f"quantize_rows goes with int8 and fp8, not with quantization = {self.quantization}")


class Engine(Phase5Engine):
    """Phase 5's scheduling over linear layers whose weights are kept in fewer bits."""

    Options = QuantizationOptions
    options: QuantizationOptions

    @classmethod
    def build_model(cls, checkpoint: Checkpoint, options: EngineOptions) -> nn.Module:
        """As before; a checkpoint that `minfer quantize` wrote keeps its codes."""
        if checkpoint.config.quantization is None:
            return super().build_model(checkpoint, options)
        dtype, _ = Device.get(options.device).dtype(options.dtype, checkpoint.dtype)
        return build_stored(checkpoint, dtype, partial(cls.home, config=checkpoint.config, options=options))

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Quantise what is not yet; then give each layer the kernel for this device and dtype."""
        raise NotImplementedError("P6 task 4: Engine.prepare_model")

    def scheme(self) -> Scheme:
        """What `quantization` names."""
        return find_scheme(str(self.options.quantization), self.options.group_size)

    @property
    def kernels(self) -> dict[str, KernelUse]:
        """Which kernel was chosen for which layers, and which ran, on how many rows, how often."""
        uses: dict[str, KernelUse] = {}
        for name, layer in quantized_layers(self.model).items():
            uses.setdefault(layer.kernel.name, KernelUse()).layers.append(name)
            for (kernel, rows), times in layer.ran.items():
                uses.setdefault(kernel, KernelUse()).ran[rows] += times
        return uses
