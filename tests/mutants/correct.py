"""Right engines of another make: whatever a test demands beyond the right answer, one of these fails it."""

from dataclasses import dataclass

import torch
from torch import nn

from minfer.core.attention import LayerAttention, Visible, causal_mask
from minfer.core.device import Device
from minfer.core.model import RMSNorm
from minfer.core.models import skeleton
from minfer.core.sampling.logprobs import prompt_logprobs
from minfer.core.sequence import FinishReason
from minfer.phase1 import Engine as Phase1Engine
from minfer.phase2 import Engine as Phase2Engine
from minfer.phase3 import Engine as Phase3Engine
from minfer.phase3 import KVCache
from tests.mutants.own_sampler import OwnSampler


class SqrtNorm(RMSNorm):
    """Divides by the root, and multiplies by the weight before it rounds."""

    def forward(self, x):
        return self.weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.eps)


class DividesByTheRoot(Phase1Engine):
    def prepare_model(self, model):
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.__class__ = SqrtNorm
        return model


def matmul_attention(q, k, v, seen):
    """softmax(q·kᵀ/√d)·v with full masks, in products; heads are expanded here. q (*, T, H, D), seen (T, S)."""
    group = q.shape[-2] // k.shape[-2]
    k, v = k.repeat_interleave(group, -2), v.repeat_interleave(group, -2)
    scores = torch.einsum("...thd,...shd->...hts", q, k) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    return torch.einsum("...hts,...shd->...thd", weights, v)


class MatmulAttention(LayerAttention):
    def __init__(self, window):
        self.window = window

    def __call__(self, q, k, v):
        rows = torch.arange(q.shape[-3])
        return matmul_attention(q, k, v, causal_mask(rows, rows, self.window))


class BatchOfOne(Phase1Engine):
    """Inputs of shape (1, T), and attention in matrix products."""

    def whole(self, token_ids, sequences):
        batch = super().whole(token_ids, sequences)
        batch.input_ids, batch.positions = batch.input_ids[None], batch.positions[None]
        batch.attention = [MatmulAttention(window) for window in self.config.windows]
        return batch

    @torch.inference_mode()
    def score(self, sequence):
        batch = self.whole(sequence.prompt_ids, [])
        batch.rows = None
        sequence.prompt_logprobs = prompt_logprobs(self.forward(batch)[0], sequence)


class InTurn(Phase1Engine):
    """All requests at once, one step of each after the other."""

    def run(self, sequences):
        try:
            self.admit(sequences)
            while running := [sequence for sequence in sequences if not sequence.finished]:
                for sequence in running:
                    yield self.execute([sequence])
        finally:
            for sequence in sequences:
                sequence.finish(FinishReason.ABORT, self.device.clock())
                self.release(sequence)


class AssignsStateDict(Phase2Engine):
    """Reads all tensors, then gives them to a module on meta."""

    @classmethod
    def build_model(cls, checkpoint, options):
        dtype, _ = Device.get(options.device).dtype(options.dtype, checkpoint.dtype)
        model = skeleton(checkpoint)
        state = {name: stored.read(dtype) for name, stored in checkpoint.plan(model).items()}
        model.load_state_dict(state, strict=False, assign=True)
        model.tie()
        model.make_tables()
        return model


class EmptyThenFilled(Phase2Engine):
    """Gives the module memory first, then fills it."""

    @classmethod
    def build_model(cls, checkpoint, options):
        dtype, _ = Device.get(options.device).dtype(options.dtype, checkpoint.dtype)
        model = skeleton(checkpoint)
        plan = checkpoint.plan(model)
        model.to(dtype).to_empty(device="cpu")
        model.tie()
        for name, parameter in model.named_parameters():
            plan[name].read_into(parameter.data)
        model.make_tables()
        return model


class OtherCache(Phase3Engine):
    Cache: type = KVCache

    def allocate(self):
        super().allocate()
        self.cache = self.Cache(self.config, self.dtype, self.device.torch_device)


class ConcatenatingLayer(LayerAttention):
    """Keeps what it has seen by joining; a layer with a window forgets what no query will see again."""

    def __init__(self, cache, window):
        self.cache, self.window = cache, window
        self.clear()

    def clear(self):
        self.keys = self.values = None

    def __call__(self, q, k, v):
        if self.keys is not None:
            k, v = torch.cat([self.keys, k]), torch.cat([self.values, v])
        positions = self.cache.positions
        held = torch.arange(int(positions[-1]) + 1)[-len(k) :]
        out = matmul_attention(q, k, v, causal_mask(positions, held, self.window))
        self.keys, self.values = (k, v) if self.window is None else (k[-self.window :], v[-self.window :])
        return out


class Concatenating:
    def __init__(self, config, dtype, device):
        self.layers = [ConcatenatingLayer(self, window) for window in config.windows]

    def reserve(self, sequences):
        for layer in self.layers:
            layer.clear()

    def begin(self, positions):
        self.positions = positions
        return self.layers


class ConcatenatingCache(OtherCache):
    Cache = Concatenating


class HeadsFirstLayer(LayerAttention):
    """(kv_heads, capacity, head_dim), in buffers of a module; always a full mask."""

    def __init__(self, cache, layer, window):
        self.cache, self.layer, self.window = cache, layer, window

    def update(self, k, v):
        cache = self.cache
        start, end = cache.start, cache.end
        both = cache.storage[self.layer]
        both[0, :, start:end] = k.transpose(0, 1)
        both[1, :, start:end] = v.transpose(0, 1)
        seen = causal_mask(torch.arange(start, end), torch.arange(cache.capacity), self.window)
        return Visible(both[0].transpose(0, 1), both[1].transpose(0, 1), seen)


class WholeContext(nn.Module):
    """Room for the whole context from the start; a module, with one buffer for all layers."""

    def __init__(self, config, dtype, device):
        super().__init__()
        self.capacity = config.context
        shape = (config.num_layers, 2, config.num_kv_heads, config.context, config.head_dim)
        self.register_buffer("storage", torch.zeros(shape, dtype=dtype))
        self.parts = [HeadsFirstLayer(self, i, window) for i, window in enumerate(config.windows)]
        self.start = self.end = 0

    def reserve(self, sequences):
        self.start = self.end = 0

    def begin(self, positions):
        self.start, self.end = self.end, self.end + len(positions)
        return self.parts


class PreallocatedForTheContext(OtherCache):
    Cache = WholeContext


@dataclass(frozen=True)
class Variant:
    """An engine that must pass all tests of a phase."""

    phase: int
    engine_cls: type

    @property
    def name(self) -> str:
        return f"phase{self.phase}-{self.engine_cls.__module__.rpartition('.')[0]}.{self.engine_cls.__name__}"


VARIANTS = [
    *(Variant(1, engine_cls) for engine_cls in (OwnSampler, DividesByTheRoot, BatchOfOne, InTurn)),
    *(Variant(2, engine_cls) for engine_cls in (AssignsStateDict, EmptyThenFilled)),
    *(Variant(3, engine_cls) for engine_cls in (ConcatenatingCache, PreallocatedForTheContext)),
    *(Variant(phase, Phase3Engine) for phase in (1, 2)),
]
