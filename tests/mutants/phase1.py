"""Mistakes of phase 1's forward: which row, how attention and rotation go, in which mode."""

import torch
from torch import nn

from minfer.phase1 import Engine
from tests.mutants import probes
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=1)
plant = MUTANTS.plant


@plant("P1-01", probes.logits())
class FirstRow(Engine):
    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.rows = batch.positions[:1]
        return batch


@plant("P1-01", probes.logits())
class LastRowButOne(Engine):
    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.rows = batch.rows - 1 if len(batch.positions) > 1 else batch.rows
        return batch


@plant("P1-01", probes.logits(), crashes=True)
class AllRows(Engine):
    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.rows = None
        return batch


class Around:
    """An attention with something wrong about what goes into it."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def __call__(self, q, k, v):
        return self.inner(*self.change(q, k, v))


class ChangedAttention(Engine):
    """Phase 1 whose attention sees `change(q, k, v)`."""

    def whole(self, token_ids, sequences):
        batch = super().whole(token_ids, sequences)
        batch.attention = [Around(attention, self.change) for attention in batch.attention]
        return batch


@plant("P1-04", probes.logits("gpt2"))
class NoScale(ChangedAttention):
    def change(self, q, k, v):
        return q * self.config.head_dim**0.5, k, v


@plant("P1-04", probes.logits("gpt2"))
class ScaledByHiddenSize(ChangedAttention):
    def change(self, q, k, v):
        return q * (self.config.head_dim / self.config.hidden_size) ** 0.5, k, v


@plant("P1-06", probes.logits())
class HeadsRepeated(ChangedAttention):
    def change(self, q, k, v):
        group = q.shape[-2] // k.shape[-2]
        return q, k.repeat(1, group, 1), v.repeat(1, group, 1)


class Turned(nn.Module):
    """A self-attention that turns q and k in its own way."""

    def __init__(self, inner, turn):
        super().__init__()
        self.inner, self.turn = inner, turn

    def forward(self, x, rotary, attend):
        inner = self.inner
        q, k, v = inner.project(x)
        q, k = self.turn(inner.q_norm(q), rotary), self.turn(inner.k_norm(k), rotary)
        return inner.o_proj(attend(q, k, v).flatten(-2))


class ChangedRotation(Engine):
    """Phase 1 whose rotary embedding is `turn(x, cos, sin)`, cos and sin `(T, 1, head_dim / 2)`."""

    def prepare_model(self, model):
        for layer in getattr(model, "layers", ()):
            layer.self_attn = Turned(layer.self_attn, self.split)
        return super().prepare_model(model)

    def split(self, x, rotary):
        half = x.shape[-1] // 2
        cos, sin = rotary[..., 0, :half], rotary[..., 1, half:]
        return self.turn(x, cos.unsqueeze(-2), sin.unsqueeze(-2))


@plant("P1-05", probes.logits("mha"))
class Interleaved(ChangedRotation):
    def turn(self, x, cos, sin):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)


@plant("P1-05", probes.logits("mha"))
class SinesForCosines(ChangedRotation):
    def turn(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * sin - b * cos, b * sin + a * cos], dim=-1)


@plant("P1-05", probes.logits("mha"))
class TurnedBackwardsInKeysOnly(ChangedRotation):
    def turn(self, x, cos, sin):
        sin = sin if x.shape[-2] == self.config.num_heads and not self.toggle() else -sin
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def toggle(self):
        self.is_key = not getattr(self, "is_key", True)  # q and k come in turn
        return self.is_key


def modes(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model().module().train().requires_grad_(True))
    engine.generate([5, 6], lab.params(2))
    return engine.record.training, engine.record.grad


@plant("P1-13", modes)
class DropoutOn(Engine):
    def prepare_model(self, model):
        return model.train()


@plant("P1-13", modes)
class GradientsOn(Engine):
    launch = Engine.launch.__wrapped__
