"""Right engines of another make, for phase 6: another grid, and one plain product for every dtype and device."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from minfer.phase6 import Engine
from minfer.phase6.conversion import quantized_layers
from minfer.phase6.int4 import Int4, pack
from minfer.phase6.quantized_linear import QuantizedLinear
from tests.mutants.correct import Variant


@dataclass(frozen=True)
class ReachesZeroScheme(Int4):
    """Each group's grid reaches 0, and has a step exactly there: an integer zero point, kept as -zero / scale."""

    def quantize(self, weight):
        grouped = self._grouped(weight)
        most, least = grouped.amax(-1).clamp_min(0), grouped.amin(-1).clamp_max(0)
        scale = ((most - least) / 15).bfloat16()
        wide = torch.where(scale == 0, torch.ones_like(scale), scale).to(weight.dtype)
        point = (-least / wide).round().clamp(0, 15)
        codes = ((grouped / wide[..., None]).round() + point[..., None]).clamp(0, 15).to(torch.uint8)
        zero = ((8 - point) * scale.to(weight.dtype)).bfloat16()
        return {"codes": pack(codes.flatten(-2)[:, : weight.shape[1]]), "scale": scale, "zero": zero}


class ReachesZero(Engine):
    def scheme(self):
        right = super().scheme()
        return ReachesZeroScheme(right.group_size) if isinstance(right, Int4) else right

    def prepare_model(self, model):
        for layer in quantized_layers(model).values():
            if isinstance(layer.scheme, Int4):  # stored codes mean the same
                layer.scheme = ReachesZeroScheme(layer.scheme.group_size)
        return super().prepare_model(model)


class Plain(QuantizedLinear):
    """Dequantises in float64, whatever the rows, and multiplies there."""

    def forward(self, x):
        rows = x.reshape(-1, self.in_features).double()
        self.ran["plain", len(rows)] += 1
        if self.quantize_rows:
            largest = 448 if self.scheme.name == "fp8" else 127
            scale = rows.abs().amax(-1, keepdim=True).clamp_min(1e-30) / largest
            rows = self.scheme.rounded(rows / scale).double() * scale
        bias = None if self.bias is None else self.bias.double()
        return F.linear(rows, self.dequantize(), bias).to(x.dtype).view(*x.shape[:-1], self.out_features)

    def pack(self, device, rows):
        pass


class InFloat64(Engine):
    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        for module in prepared.modules():
            if isinstance(module, QuantizedLinear):
                module.unpack()
                module.__class__ = Plain
        return prepared


VARIANTS = (Variant(6, ReachesZero), Variant(6, InFloat64))
