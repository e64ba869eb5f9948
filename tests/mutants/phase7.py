"""Mistakes of phase 7: sizes that the compiler fixes, broken graphs, wrong merging, copies, traces of warming up."""

import types
from functools import partial
from unittest.mock import patch

import torch
from torch import nn

from minfer.core.rope import rotate
from minfer.course.machines.compiles import Compiles
from minfer.phase7 import Engine
from minfer.phase7.blocks import FusedBlock
from minfer.phase7.decoding import Decoding, attend_and_go_on
from minfer.phase7.fused_model import FusedModel, between
from tests.mutants import probes
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=7)
plant = MUTANTS.plant


def compiled(engine_cls, lab):
    """Graphs, whether some ran, and whether there were breaks, over requests of several lengths."""
    seen = Compiles()
    model = lab.model()
    engine = lab.engine(engine_cls, model, compiler=Compiles.name)
    ran = seen.calls
    for length in range(2, 9):
        lab.run(engine, [probes.ids(model, length)], lab.params(2))
    return seen.graphs, seen.calls > ran, bool(seen.breaks)


def answer(engine_cls, lab):
    model = lab.model()
    return lab.run(lab.engine(engine_cls, model), [probes.ids(model, 6)], lab.params(3))[0].logits


def own_code(function):
    """A copy with a code object of its own: Dynamo counts graphs against its limit per code object."""
    return types.FunctionType(function.__code__.replace(), function.__globals__)


class Region(Engine):
    """Phase 7 with another region, or another way of compiling it."""

    def region(self):
        return between

    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        if isinstance(prepared, FusedModel) and not self.compilation.problem:
            prepared.between, prepared.decoding = self.region(), None
        return prepared


# ---- what the compiler sees ------------------------------------------------------------------------------------------


@plant("P7-01", compiled)
class EverySizeIsAConstant(Region):
    def region(self):
        return torch.compile(own_code(between), backend=self.compilation._counted, dynamic=False)


class Length(int):
    """A number that the compiler does not make a variable of."""

    __hash__ = int.__hash__


def between_with_length(block, following, x, attended, rotary, length):
    return between(block, following, x + 0 * length, attended, rotary)


@plant("P7-01", compiled)
class LengthAsANumber(Region):
    def region(self):
        inner = torch.compile(own_code(between_with_length), backend=self.compilation._counted, dynamic=True)
        return lambda block, following, x, *more: inner(block, following, x, *more, Length(len(x)))


def between_that_reads(block, following, x, attended, rotary):
    if attended.sum().item() != attended.sum().item():
        raise ArithmeticError("attention gave NaN")
    return between(block, following, x, attended, rotary)


@plant("P7-02", compiled)
class ReadsAValue(Region):
    def region(self):
        return torch.compile(own_code(between_that_reads), backend=self.compilation._counted, dynamic=True)


def between_that_prints(block, following, x, attended, rotary):
    x = block.leave(x, attended)
    torch._dynamo.graph_break()
    return x, *following.enter(x, rotary)


@plant("P7-02", compiled)
class BreaksBetweenHalves(Region):
    def region(self):
        return torch.compile(own_code(between_that_prints), backend=self.compilation._counted, dynamic=True)


@plant("P7-05", compiled)
class CompiledButNotUsed(Engine):
    def allocate(self):
        super().allocate()
        if isinstance(self.model, FusedModel):
            self.model.between, self.model.decoding = between, None


@plant("P7-05", compiled)
class SuppressesTheError(Region):
    def region(self):
        def broken(graph, inputs):
            raise RuntimeError("no such kernel")

        inner = torch.compile(lambda *parts: between(*parts), backend=broken, dynamic=True)

        def region(*parts):
            try:
                return inner(*parts)
            except Exception:
                return between(*parts)

        return region


# ---- a decode step's attention in the region -------------------------------------------------------------------------


def compiled_answer(engine_cls, lab, epsilon=None):
    model = lab.model(layers=4)
    module = model.module()
    if epsilon is not None:
        module.layers[1].post_attention_layernorm.eps = epsilon
    engine = lab.engine(engine_cls, module, compiler=Compiles.name)
    return lab.run(engine, [probes.ids(model, 6)], lab.params(4))[0].logits


def uncompiled_answer(engine_cls, lab):
    """What the regions compute, run as they are written: the mistake is in that, and to compile it takes seconds."""
    with patch.object(torch, "compile", lambda function, **_: function):
        return compiled_answer(engine_cls, lab)


class Decodes(Engine):
    """Phase 7 with another `attend_and_go_on`."""

    decoded = staticmethod(attend_and_go_on)

    def compile(self, model):
        super().compile(model)
        if model.decoding is not None:
            region = self.compilation.compiled(type(self).decoded)
            model.decoding.one = model.decoding.more = region


def unmasked(block, following, x, q, k, v, rotary, layer):
    *rest, seen = layer
    return attend_and_go_on(block, following, x, q, k, v, rotary, [*rest, torch.ones_like(seen)])


def scaled_twice(block, following, x, q, k, v, rotary, layer):
    return attend_and_go_on(block, following, x, q * block.head_dim**-0.5, k, v, rotary, layer)


def stored_after_read(block, following, x, q, k, v, rotary, layer):
    keys, values, slots, context, seen = layer
    nowhere = torch.full_like(slots, keys.shape[0] - 1)  # in the scratch block
    made = attend_and_go_on(block, following, x, q, k, v, rotary, [keys, values, nowhere, context, seen])
    keys.index_put_((slots,), k)
    values.index_put_((slots,), v)
    return made


def heads_dealt_in_turn(block, following, x, q, k, v, rotary, layer):
    """As if query heads 0, 2, 4 … were the group of key head 0."""
    dealt = q.view(-1, block.group, block.kv_heads, block.head_dim).transpose(1, 2).flatten(1)
    return attend_and_go_on(block, following, x, dealt, k, v, rotary, layer)


@plant("P7-05", uncompiled_answer)
class SeesWhatIsNotThereYet(Decodes):
    decoded = staticmethod(unmasked)


@plant("P7-05", uncompiled_answer)
class ScalesTwice(Decodes):
    decoded = staticmethod(scaled_twice)


@plant("P7-05", uncompiled_answer)
class StoresAfterItReads(Decodes):
    decoded = staticmethod(stored_after_read)


@plant("P7-05", uncompiled_answer)
class DealsHeadsInTurn(Decodes):
    decoded = staticmethod(heads_dealt_in_turn)


@plant("P7-05", uncompiled_answer)
class WeightsOfTheFirstLayerForAll(Engine):
    def compile(self, model):
        super().compile(model)
        if model.decoding is not None:
            region, blocks = model.decoding.one, model.layers[:2]
            model.decoding.one = model.decoding.more = lambda _, __, *rest: region(*blocks, *rest)


@plant("P7-05", partial(compiled_answer, epsilon=0.5))
class OneGraphForLayersThatDiffer(Engine):
    def compile(self, model):
        super().compile(model)
        if not self.compilation.problem:
            model.decoding = Decoding(partial(self.compilation.compiled, guarded_by="x"))


# ---- what is merged --------------------------------------------------------------------------------------------------


class Enters(Engine):
    """Phase 7 with another way into attention, or out of it."""

    enter, leave = FusedBlock.enter, FusedBlock.leave

    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        for block in getattr(prepared, "layers", []):
            if isinstance(block, FusedBlock):
                block.enter = type(self).enter.__get__(block)
                block.leave = type(self).leave.__get__(block)
        return prepared


def values_before_keys(self, x, rotary):
    q, k, v = (self.widths[0], self.widths[1], self.widths[2])
    parts = self.qkv_proj(self.input_layernorm(x)).split([q, v, k], dim=-1)
    q, v, k = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
    return rotate(self.q_norm(q), rotary), rotate(self.k_norm(k), rotary), v


def interleaved(self, x, rotary):
    """As if each group of heads had its own q, k and v side by side."""
    made = self.qkv_proj(self.input_layernorm(x))
    groups = made.unflatten(-1, (self.widths[1] // self.head_dim, -1))
    q, k, v = groups.split([self.widths[0] // groups.shape[-2], self.head_dim, self.head_dim], dim=-1)
    q, k, v = (part.flatten(-2).unflatten(-1, (-1, self.head_dim)) for part in (q, k, v))
    return rotate(self.q_norm(q), rotary), rotate(self.k_norm(k), rotary), v


def up_before_gate(self, x, attended):
    x = x + self.o_proj(attended)
    up, gate = self.gate_up_proj(self.post_attention_layernorm(x)).chunk(2, dim=-1)
    return x + self.down_proj(self.activation(gate) * up)


@plant("P7-06", answer)
class ValuesBeforeKeys(Enters):
    enter = values_before_keys


@plant("P7-06", answer)
class HeadsInterleaved(Enters):
    enter = interleaved


@plant("P7-06", answer)
class UpBeforeGate(Enters):
    leave = up_before_gate


def biased(engine_cls, lab):
    model = lab.model("biased")
    return lab.run(lab.engine(engine_cls, model), [probes.ids(model, 6)], lab.params(3))[0].logits


@plant("P7-06", biased)
class BiasesLeftOut(Engine):
    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        for block in getattr(prepared, "layers", []):
            if isinstance(block, FusedBlock):
                block.qkv_proj.bias = None
        return prepared


class Unmerged(nn.Module):
    """Several layers that only look like one."""

    def __init__(self, linear, parts):
        super().__init__()
        self.parts = nn.ModuleList()
        for weight in linear.weight.split(linear.out_features // parts):
            part = nn.Linear(linear.in_features, len(weight), bias=False, dtype=weight.dtype)
            part.weight = nn.Parameter(weight, requires_grad=False)
            self.parts.append(part)

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], dim=-1)


def products(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model())
    return sum(isinstance(module, nn.Linear) for module in engine.model.modules())


@plant("P7-20", products)
class NotMerged(Engine):
    def prepare_model(self, model):
        prepared = super().prepare_model(model)
        for block in getattr(prepared, "layers", []):
            if isinstance(block, FusedBlock) and block.gate_up_proj.bias is None:
                block.gate_up_proj = Unmerged(block.gate_up_proj, 2)
        return prepared


# ---- what is left behind ---------------------------------------------------------------------------------------------


def weights(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model())
    return sum(weight.numel() for weight in engine.model.parameters())


@plant("P7-21", weights)
class KeepsTheParts(Engine):
    def prepare_model(self, model):
        parts = nn.ParameterList(list(model.parameters()))
        prepared = super().prepare_model(model)
        prepared.parts = parts
        return prepared


def after_warmup(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model(), num_blocks=20, block_size=3)
    engine.warmup()
    return engine.debug_state()["free"], sum(int(b.count_nonzero()) for b in lab.caches(lab.model(), engine).tensors)


@plant("P7-22", after_warmup)
class WarmsUpWithARequest(Engine):
    def warmup(self):
        self.generate([[5, 6, 7, 8]])


@plant("P7-22", after_warmup)
class WarmsUpInAStep(Engine):
    def warmup(self):
        self.submit([5, 6, 7, 8])
        self.step()
