"""Mistakes of phase 6: codes, scales and zero points that are wrong; kernels that multiply with something else."""

from dataclasses import dataclass
from types import MethodType

import torch
import torch.nn.functional as F
from torch import nn

from minfer.core.device import Device
from minfer.phase6 import Engine
from minfer.phase6.conversion import quantized_layers
from minfer.phase6.int4 import Int4, pack, unpack
from minfer.phase6.quantized_linear import QuantizedLinear, frozen
from minfer.phase6.schemes import Float8, Half, Int8
from minfer.phase6.stored import build_stored
from tests.mutants import probes
from tests.mutants.planting import Mutants
from tests.phase6.quantized import FP8, INT4, INT8, layers, quantized, rows
from tests.phase6.test_models import stored

MUTANTS = Mutants(phase=6)
plant = MUTANTS.plant


def stands_for(weight, options=INT4, count=2, dtype=torch.float64):
    """The codes of a weight, what they stand for, and a product."""

    def probe(engine_cls, lab):
        layer = quantized(engine_cls, lab, weight.to(dtype), **options)
        codes = layer.codes.double().nan_to_num(1000).tolist() if hasattr(layer, "codes") else []
        x = rows(count, weight.shape[1], dtype=dtype)
        return codes, layer.dequantize().tolist(), layer(x).tolist()

    return probe


class Encodes(Engine):
    """Phase 6 with another scheme in place of its own of that name."""

    mistaken = Int4

    def scheme(self):
        kind, right = type(self).mistaken, super().scheme()
        if right.name != kind.name:
            return right
        return kind(self.options.group_size) if issubclass(kind, Int4) else kind()


class Multiplies(Engine):
    """Phase 6 with another forward of its layers."""

    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        for layer in quantized_layers(prepared).values():
            layer.forward = MethodType(type(self).multiply, layer)
        return prepared


def swapped(codes):
    return (codes << 4) | (codes >> 4)


# ---- codes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HighNibbleScheme(Int4):
    def quantize(self, weight):
        parts = super().quantize(weight)
        return {**parts, "codes": swapped(parts["codes"])}

    def dequantize(self, parts, in_features, dtype):
        return super().dequantize({**parts, "codes": swapped(parts["codes"])}, in_features, dtype)


@plant("P6-01", stands_for(rows(4, 32)))
class HighNibbleFirst(Encodes):
    mistaken = HighNibbleScheme


@dataclass(frozen=True)
class HalvesScheme(Int4):
    """The low nibbles are the first half of the row."""

    def quantize(self, weight):
        parts = super().quantize(weight)
        low, high = unpack(parts["codes"], weight.shape[1]).tensor_split(2, dim=1)
        return {**parts, "codes": low | F.pad(high, (0, low.shape[1] - high.shape[1])) << 4}

    def dequantize(self, parts, in_features, dtype):
        codes = torch.cat([parts["codes"] & 0xF, parts["codes"] >> 4], dim=1)
        half = -(-in_features // 2)
        kept = torch.cat([codes[:, :half], codes[:, half : half + in_features - half]], dim=1)
        return super().dequantize({**parts, "codes": pack(kept)}, in_features, dtype)


@plant("P6-01", stands_for(rows(4, 32)))
class SplitHalves(Encodes):
    mistaken = HalvesScheme


@dataclass(frozen=True)
class UnsignedScheme(Int4):
    def dequantize(self, parts, in_features, dtype):
        return super().dequantize(parts, in_features, dtype).abs()


@plant("P6-02", stands_for(rows(4, 32)))
class SignsLost(Encodes):
    mistaken = UnsignedScheme


@dataclass(frozen=True)
class TwosComplementScheme(Int4):
    """Nibbles from 8 on are read as negative."""

    def dequantize(self, parts, in_features, dtype):
        codes = unpack(parts["codes"], in_features)
        return super().dequantize({**parts, "codes": pack(codes ^ 8)}, in_features, dtype)


@plant("P6-02", stands_for(rows(4, 32)))
class ReadAsTwosComplement(Encodes):
    mistaken = TwosComplementScheme


# ---- scales and zero points ------------------------------------------------------------------------------------------


class AlongTheInput(Int8):
    """A scale per input channel, put on as if it were one per output channel, where the shapes allow that."""

    def quantize(self, weight):
        scale = (weight.abs().amax(0) / self.largest).float()
        codes = self.rounded((weight / scale).clamp(-self.largest, self.largest))
        kept = scale if len(scale) == len(weight) else scale.mean().expand(len(weight)).clone()
        return {"codes": codes, "scale": kept}


@plant("P6-03", stands_for(rows(24, 24), INT8))
class ScaleOfTheWrongAxis(Encodes):
    mistaken = AlongTheInput


class OneScale(Int8):
    def quantize(self, weight):
        scale = (weight.abs().amax() / 127).float().expand(len(weight)).clone()
        return {"codes": (weight / scale[:, None]).round().to(torch.int8), "scale": scale}


@plant("P6-03", stands_for(rows(5, 24) * torch.tensor([1.0, 10, 1, 1, 1])[:, None], INT8))
class OneScaleForAll(Encodes):
    mistaken = OneScale


@dataclass(frozen=True)
class ZeroOffScheme(Int4):
    def dequantize(self, parts, in_features, dtype):
        return super().dequantize({**parts, "zero": parts["zero"] + parts["scale"]}, in_features, dtype)


@plant("P6-04", stands_for(rows(4, 32)))
class ZeroOffByOne(Encodes):
    mistaken = ZeroOffScheme


@dataclass(frozen=True)
class ZeroNegatedScheme(Int4):
    def dequantize(self, parts, in_features, dtype):
        return super().dequantize({**parts, "zero": -parts["zero"]}, in_features, dtype)


@plant("P6-04", stands_for(rows(4, 32)))
class ZeroNegated(Encodes):
    mistaken = ZeroNegatedScheme


@dataclass(frozen=True)
class NoWidthScheme(Int4):
    """A group of one value has no scale, and is divided by it."""

    def dequantize(self, parts, in_features, dtype):
        made = super().dequantize(parts, in_features, dtype)
        flat = parts["scale"].repeat_interleave(self.group_size, -1)[:, :in_features] == 0
        return made.masked_fill(flat & (made != 0), float("nan"))


@plant("P6-04", stands_for(torch.full((2, 32), 3.0).double()))
class DividesByNoWidth(Encodes):
    mistaken = NoWidthScheme


class Wraps(Int8):
    """128 steps to the largest weight, and no clamp."""

    def quantize(self, weight):
        scale = (weight.abs().amax(-1) / 128).float()
        steps = (weight / scale.clamp_min(1e-30)[:, None]).round().long()
        return {"codes": ((steps + 128) % 256 - 128).to(torch.int8), "scale": scale}


@plant("P6-05", stands_for(rows(4, 32), INT8))
class WrapsAt128(Encodes):
    mistaken = Wraps


class Unclamped(Float8):
    def quantize(self, weight):
        scale = (weight.abs().amax(-1) / 500).float()
        return {"codes": (weight / scale.clamp_min(1e-30)[:, None]).float().to(torch.float8_e4m3fn), "scale": scale}


@plant("P6-05", stands_for(rows(4, 32), FP8))
class Float8Overflows(Encodes):
    mistaken = Unclamped


class Infinite(Half):
    def quantize(self, weight):
        return {"codes": weight.half()}


@plant("P6-05", stands_for(torch.full((2, 32), 1e5).double(), {"quantization": "fp16"}))
class HalfOverflows(Encodes):
    mistaken = Infinite


class CutsOff(Int8):
    def rounded(self, steps):
        return steps.to(torch.int8)


@plant("P6-06", stands_for(rows(4, 32), INT8))
class CutsOffInt8(Encodes):
    mistaken = CutsOff


@dataclass(frozen=True)
class FloorScheme(Int4):
    def quantize(self, weight):
        lower = super().quantize(weight)
        grid = super().dequantize(lower, weight.shape[1], weight.dtype)
        codes = unpack(lower["codes"], weight.shape[1])
        return {**lower, "codes": pack(codes - ((grid > weight) & (codes > 0)).to(torch.uint8))}


@plant("P6-06", stands_for(rows(4, 32)))
class FloorsInt4(Encodes):
    mistaken = FloorScheme


@dataclass(frozen=True)
class NoTailScheme(Int4):
    def dequantize(self, parts, in_features, dtype):
        made = super().dequantize(parts, in_features, dtype).clone()
        made[:, in_features - in_features % self.group_size :] = 0
        return made


@plant("P6-07", stands_for(rows(4, 77)))
class DropsTheLastGroup(Encodes):
    mistaken = NoTailScheme


@dataclass(frozen=True)
class TailSharesScheme(Int4):
    """The last columns have the scale of the group before them."""

    def quantize(self, weight):
        whole = max(weight.shape[1] // self.group_size, 1) * self.group_size
        parts = super().quantize(weight)
        scale, zero = parts["scale"].clone(), parts["zero"].clone()
        if weight.shape[1] > whole:
            scale[:, -1], zero[:, -1] = scale[:, -2], zero[:, -2]
        return {**parts, "scale": scale, "zero": zero}


@plant("P6-07", stands_for(rows(4, 77)))
class TailHasNoScale(Encodes):
    mistaken = TailSharesScheme


class NoZeros(Int8):
    def quantize(self, weight):
        scale = (weight.abs().amax(-1) / 127).float()
        return {"codes": (weight / scale[:, None]).round().to(torch.int8), "scale": scale * scale / scale}


def of_zeros(engine_cls, lab):
    return quantized(engine_cls, lab, torch.zeros(2, 32).double(), **INT8)(rows(1, 32)).isnan().any().item()


@plant("P6-12", of_zeros)
class DividesByZero(Encodes):
    mistaken = NoZeros


# ---- which layers ----------------------------------------------------------------------------------------------------


def parameters(family="tied", **options):
    """Names, dtypes and sums of all parameters."""

    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.model(family), **options)
        return {name: (str(p.dtype), p.double().sum().item()) for name, p in engine.model.named_parameters()}

    return probe


@plant("P6-09", parameters(**INT4))
class QuantisesEmbeddings(Engine):
    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        for module in prepared.modules():
            if isinstance(module, nn.Embedding) and self.options.quantization:
                table = Int8()
                module.weight.data = table.dequantize(table.encode(module.weight.data), 0, module.weight.dtype)
        return prepared


def head(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model("tied"), **INT4)
    return engine.model.lm_head.weight is engine.model.embed_tokens.weight


@plant("P6-09", head)
class UntiesTheHead(Engine):
    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        if self.options.quantization and hasattr(prepared, "lm_head") and hasattr(prepared.lm_head, "weight"):
            prepared.lm_head.weight = frozen(prepared.lm_head.weight.detach().clone())
        return prepared


@plant("P6-09", lambda engine_cls, lab: sorted(layers(lab.engine(engine_cls, lab.model("gpt2"), **INT4).model)))
class QuantisesTheHeadUnasked(Engine):
    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        if self.options.quantization and isinstance(getattr(prepared, "lm_head", None), nn.Linear):
            prepared.lm_head = QuantizedLinear.from_linear(prepared.lm_head, self.scheme())
        return prepared


@plant("P6-26", parameters(**INT8, quantize_head=True))
class HeadStaysAsItWas(Engine):
    def prepare_model(self, model):
        head = getattr(model, "lm_head", None)
        prepared = super().prepare_model(model)
        if head is not None:
            prepared.lm_head = head
        return prepared


# ---- products --------------------------------------------------------------------------------------------------------


def long_sum(engine_cls, lab):
    layer = quantized(engine_cls, lab, torch.full((16, 4096), 127.0), **INT8)
    return layer(torch.full((1, 4096), 127.0))[0, 0].item()


@plant("P6-11", long_sum)
class AccumulatesInHalf(Multiplies):
    def multiply(self, x):
        made = x.half() @ self.dequantize().half().T
        return made.to(x.dtype) + (0 if self.bias is None else self.bias)


@plant("P6-11", long_sum)
class AccumulatesIn16Bits(Multiplies):
    def multiply(self, x):
        made = (x @ self.dequantize().to(x.dtype).T).long()
        return ((made + 2**15) % 2**16 - 2**15).to(x.dtype)


def wholly(dtype, options=INT8):
    def probe(engine_cls, lab):
        return quantized(engine_cls, lab, rows(48, 64).to(dtype), **options)(rows(3, 64, dtype=dtype)).double().tolist()

    return probe


@plant("P6-21", wholly(torch.float32))
class RoundsRowsToBfloat16(Multiplies):
    def multiply(self, x):
        wide = x.bfloat16().to(x.dtype)
        return QuantizedLinear.forward(self, wide)


def biased(engine_cls, lab):
    return quantized(engine_cls, lab, rows(4, 32), rows(4), **INT8)(rows(2, 32)).tolist()


@plant("P6-21", biased)
class ForgetsTheBias(Multiplies):
    def multiply(self, x):
        kept, self.bias = self.bias, None
        made = QuantizedLinear.forward(self, x)
        self.bias = kept
        return made


def of_a_biased_model(engine_cls, lab):
    model = lab.model("biased")
    return lab.run(lab.engine(engine_cls, model, **INT8), [probes.ids(model, 5)], lab.params(2))[0].logits


@plant("P6-20", of_a_biased_model)
class ForgetsTheBiasOfModels(ForgetsTheBias):
    pass


def in_company(engine_cls, lab):
    layer = quantized(engine_cls, lab, rows(16, 64).float(), **INT8, quantize_rows=True)
    x = rows(3, 64).float() * torch.tensor([1.0, 100, 1e-3])[:, None]
    return layer(x).tolist()


@plant("P6-22", in_company)
class OneScaleForTheBatch(Multiplies):
    def multiply(self, x):
        if self.quantize_rows:
            scale = x.abs().max().clamp_min(1e-30) / 127
            x = (x / scale).round() * scale
        return F.linear(x, self.dequantize().to(x.dtype), self.bias)


@plant("P6-22", in_company)
class RowsLeftAlone(Multiplies):
    def multiply(self, x):
        return F.linear(x, self.dequantize().to(x.dtype), self.bias)


def held(options):
    def probe(engine_cls, lab):
        layer = quantized(engine_cls, lab, rows(64, 96), **options)
        tensors = [value for value in vars(layer).values() if isinstance(value, torch.Tensor)]
        return layer.nbytes, len(tensors), len(list(layer.modules()))

    return probe


@dataclass(frozen=True)
class UnpackedScheme(Int4):
    def shapes(self, out_features, in_features):
        return {**super().shapes(out_features, in_features), "codes": ((out_features, in_features), torch.uint8)}

    def quantize(self, weight):
        parts = super().quantize(weight)
        return {**parts, "codes": unpack(parts["codes"], weight.shape[1])}

    def dequantize(self, parts, in_features, dtype):
        return super().dequantize({**parts, "codes": pack(parts["codes"])}, in_features, dtype)


@plant("P6-23", lambda engine_cls, lab: quantized(engine_cls, lab, rows(64, 96), **INT4).nbytes)
class ByteForEachNibble(Encodes):
    mistaken = UnpackedScheme


@plant("P6-23", held(INT8))
class KeepsTheWeight(Engine):
    def prepare_model(self, model):
        plain = {name: one.weight for name, one in model.named_modules() if isinstance(one, nn.Linear)}
        prepared = super().prepare_model(model)
        for name, layer in quantized_layers(prepared).items():
            object.__setattr__(layer, "original", plain[name])
        return prepared


def merging(engine_cls, lab):
    parts = [quantized(engine_cls, lab, rows(out, 64, seed=out), rows(out), **INT8) for out in (5, 7)]
    merged = type(parts[0]).merged(parts)
    return merged.dequantize().tolist(), merged(rows(1, 64)).tolist()


class RequantisesOnMerging(QuantizedLinear):
    @classmethod
    def merged(cls, layers):
        weight = torch.cat([layer.dequantize() for layer in layers])
        most = weight.abs().amax()
        whole = QuantizedLinear.merged(layers)
        whole.scale.data = (most / 127).float().expand(len(weight)).clone()
        whole.codes.data = (weight / whole.scale.double()[:, None]).round().to(whole.codes.dtype)
        return whole


class ForgetsBiasesOnMerging(QuantizedLinear):
    @classmethod
    def merged(cls, layers):
        whole = QuantizedLinear.merged(layers)
        whole.bias = None
        return whole


class Merges(Engine):
    layer = RequantisesOnMerging

    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        for one in quantized_layers(prepared).values():
            one.__class__ = type(self).layer
        return prepared


@plant("P6-24", merging, crashes=True)
class MergesWithOneScale(Merges):
    layer = RequantisesOnMerging


@plant("P6-24", merging)
class MergesWithoutBias(Merges):
    layer = ForgetsBiasesOnMerging


def counted(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), **INT8)
    lab.run(engine, [[5, 6, 7]], lab.params(2))
    return {name: sum(use.ran.values()) for name, use in engine.kernels.items()}


@plant("P6-25", counted)
class CountsNothing(Multiplies):
    def multiply(self, x):
        kept = self.ran.copy()
        made = QuantizedLinear.forward(self, x)
        self.ran = kept
        return made


# ---- company and files -----------------------------------------------------------------------------------------------


def served(engine_cls, lab):
    model = lab.model("mistral")
    engine = lab.engine(engine_cls, model, **INT8, chunk_size=3)
    prompts = [probes.ids(model, 9), probes.ids(model, 5)]
    return [run.logits.tolist() for run in lab.run(engine, prompts, lab.params(4))]


@plant("P6-27", served)
class ScaleOfTheWholeStep(Multiplies):
    """Rows are rounded by what else is in the step."""

    def multiply(self, x):
        scale = x.abs().max().clamp_min(1e-30) / 127
        return QuantizedLinear.forward(self, (x / scale).round() * scale)


def loaded(engine_cls, lab):
    model = lab.model("llama")
    folder = stored(lab.engine(Engine, model, **INT8), model, lab.new_folder())
    engine = lab.load(engine_cls, folder)
    return {name: (str(p.dtype), p.double().sum().item()) for name, p in engine.model.named_parameters()}


@plant("P6-28", loaded)
class ScalesInTheModelsDtype(Engine):
    @classmethod
    def build_model(cls, checkpoint, options):
        model = super().build_model(checkpoint, options)
        for layer in quantized_layers(model).values():
            if hasattr(layer, "scale"):
                layer.scale = frozen(layer.scale.data.half())
        return model


def contradicting(engine_cls, lab):
    model = lab.model("llama")
    folder = stored(lab.engine(Engine, model, **INT4), model, lab.new_folder(), scheme="int8")
    return sorted(layers(lab.load(engine_cls, folder).model))


@plant("P6-29", contradicting)
class BelievesAnything(Engine):
    @classmethod
    def build_model(cls, checkpoint, options):
        if checkpoint.config.quantization is None:
            return super().build_model(checkpoint, options)
        try:
            return super().build_model(checkpoint, options)
        except ValueError:
            fallback = type(checkpoint)(checkpoint.folder)
            actual = "int4" if checkpoint.config.quantization.scheme != "int4" else "int8"
            object.__setattr__(fallback.config.quantization, "scheme", actual)
            return build_stored(fallback, torch.float64, lambda name: Device.get(options.device).torch_device)
