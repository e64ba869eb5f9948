"""FBGEMM's products on x86: float16 weights with float32 rows, and 8-bit weights with 8-bit rows.

The weight is in an object of torch that shows no memory: `opaque_bytes` counts it as FBGEMM lays it out.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minfer.core.device import Device
from minfer.phase6.kernels import Kernel
from minfer.phase6.schemes import Half, Int8, Parts

if TYPE_CHECKING:
    from minfer.phase6.quantized_linear import QuantizedLinear

ENGINE = "fbgemm"
MOST_PADDING = 2.0
"""The packed int8 weight may take this many times the bytes of the scheme's codes: other kernels are half as fast on
few rows."""


def padded(out_features: int, in_features: int, block: int) -> int:
    """Numbers that FBGEMM stores for a weight: in blocks of 512 columns and `block` channels, seen on AVX-512."""
    return -(-out_features // block) * block * -(-in_features // 512) * 512


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
