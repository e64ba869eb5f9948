"""Mistakes of phase 3: positions, masks, what is kept, what is seen."""

from functools import cache

import torch

from minfer.core.attention import Visible
from minfer.core.errors import MinferError
from minfer.phase1 import Engine as Phase1Engine
from minfer.phase3 import Engine, KVCache
from minfer.phase3.kv_cache import CachedAttention
from tests.mutants import probes
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=3)
plant = MUTANTS.plant


class OtherCache(Engine):
    """Phase 3 with another cache."""

    Cache: type[KVCache] = KVCache

    def allocate(self):
        super().allocate()
        self.cache = self.Cache(self.config, self.dtype, self.device.torch_device)


@cache
def continued(length=5, chunk=(7, 8, 9), family="llama"):
    """The last logits after a chunk of several tokens that follows a cached prefix."""

    def probe(engine_cls, lab):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model)
        (sequence,) = engine.sequences([probes.ids(model, length)], lab.params(20))
        engine.admit([sequence])
        engine.execute([sequence])
        sequence.token_ids += chunk
        sequence.output_ids += chunk
        engine.execute([sequence])
        return engine.record.rows(sequence, model.config.vocab_size).round(6).tolist()

    return probe


@plant("P3-01", probes.logits())
class PositionsFromZero(Engine):
    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.positions = batch.positions - batch.positions[0]
        return batch


@plant("P3-01", probes.logits())
class PositionsOneTooFar(Engine):
    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.positions = batch.positions + (batch.positions[:1] > 0)
        return batch


class TopLeftCache(KVCache):
    def _mask(self, positions, held, window):
        if len(positions) == 1 or self.is_causal(window):
            return None
        seen = held[self.first_visible(window) :]
        distance = torch.arange(len(positions))[:, None] - torch.arange(len(seen))
        return (distance >= 0) & (distance < (window or len(held)))


@plant("P3-02", continued())
class TopLeftMask(OtherCache):
    Cache = TopLeftCache


class NoMaskAfterPrefill(KVCache):
    def _mask(self, positions, held, window):
        return None if self.start else super()._mask(positions, held, window)


@plant("P3-02", continued())
class ChunkSeesItsFuture(OtherCache):
    Cache = NoMaskAfterPrefill


class FullMaskInWindows(KVCache):
    def _mask(self, positions, held, window):
        if not self.start or len(positions) == 1:
            return super()._mask(positions, held, window)
        seen = held[self.first_visible(window) :]
        return positions[:, None] >= seen


@plant("P3-02", continued(family="mistral", chunk=tuple(range(5, 25))[:12]))
class ChunkForgetsTheWindow(OtherCache):
    Cache = FullMaskInWindows


class Uncleared(KVCache):
    """Room for many requests, and never emptied."""

    def reserve(self, sequences):
        start, end = self.start, self.end
        if not self.capacity:
            (sequence,) = sequences
            kept, sequence.context = sequence.context, 20 * self.config.context
            params, sequence.params = sequence.params, sequence.params.__class__(max_tokens=None)
            super().reserve(sequences)
            sequence.context, sequence.params = kept, params
        self.start, self.end = start, end


@plant("P3-06", probes.logits(calls=2))
class CacheNotReset(OtherCache):
    Cache = Uncleared


@plant("P3-06", probes.logits(calls=2))
class SecondPromptTakenForCached(Engine):
    def admit(self, sequences):
        held = getattr(self, "held", 0)
        end = self.cache.end
        super().admit(sequences)
        (sequence,) = sequences
        if held:  # goes on where the last request ended its prompt
            sequence.num_cached = min(held, sequence.num_prompt - 1)
            self.cache.end = min(end, sequence.num_cached)
        self.held = sequence.num_prompt


class OneLayer(KVCache):
    def __init__(self, *args):
        super().__init__(*args)
        self.layers = [self.layers[0]] * len(self.layers)


@plant("P3-07", probes.logits())
class LayersShareOneCache(OtherCache):
    Cache = OneLayer


class ExpandedAttention(CachedAttention):
    def update(self, k, v):
        group = self.cache.config.num_heads // self.cache.config.num_kv_heads
        return super().update(k.repeat_interleave(group, -2), v.repeat_interleave(group, -2))


class Expanded(KVCache):
    def __init__(self, config, dtype, device):
        super().__init__(config, dtype, device)
        self.layers = [ExpandedAttention(self, window) for window in config.windows]

    def reserve(self, sequences):
        config = self.config
        self.config = type(config)(**{**vars(config), "num_kv_heads": config.num_heads})
        super().reserve(sequences)
        self.config = config


def cache_bytes(engine_cls, lab):
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    engine.generate([5, 6, 7], lab.params(4))
    return lab.caches(model, engine).nbytes


@plant("P3-08", cache_bytes)
class StoresExpandedHeads(OtherCache):
    Cache = Expanded


class WholeBuffer(CachedAttention):
    def update(self, k, v):
        visible = super().update(k, v)
        if len(k) > 1 or self.window is not None:
            return visible
        return Visible(self.keys, self.values)


class Unbounded(KVCache):
    def __init__(self, config, dtype, device):
        super().__init__(config, dtype, device)
        self.layers = [WholeBuffer(self, window) for window in config.windows]


@plant("P3-09", probes.logits())
class SeesTheEmptyTail(OtherCache):
    Cache = Unbounded


class OneSlotTooMany(CachedAttention):
    def update(self, k, v):
        visible = super().update(k, v)
        if len(k) > 1:
            return visible
        seen = slice(self.cache.first_visible(self.window), self.cache.end + 1)
        return Visible(self.keys[seen], self.values[seen])


class OffByOne(KVCache):
    def __init__(self, config, dtype, device):
        super().__init__(config, dtype, device)
        self.layers = [OneSlotTooMany(self, window) for window in config.windows]


@plant("P3-09", probes.logits())
class SeesOneSlotTooMany(OtherCache):
    Cache = OffByOne


def forwarded(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model())
    engine.generate([5, 6, 7], lab.params(4))
    return engine.record.forwarded


@plant("P3-10", forwarded)
class RecomputesEverything(Engine):
    prepare = Phase1Engine.prepare


@plant("P3-10", forwarded)
class PrefillsOneByOne(Engine):
    def prepare(self, sequences):
        (sequence,) = sequences
        whole = sequence.token_ids
        while sequence.num_cached < len(whole) - 1:
            sequence.token_ids = whole[: sequence.num_cached + 1]
            self.forward(super().prepare(sequences))
            sequence.num_cached += 1
        sequence.token_ids = whole
        return super().prepare(sequences)


class WiderWindow(KVCache):
    def first_visible(self, window):
        return max(0, super().first_visible(window) - 1)


@plant("P3-11", probes.logits("mistral", steps=14))
class WindowOneTooWide(OtherCache):
    Cache = WiderWindow


class NoWindowInDecode(KVCache):
    def first_visible(self, window):
        return 0


@plant("P3-11", probes.logits("mistral", steps=14))
class DecodeForgetsTheWindow(OtherCache):
    Cache = NoWindowInDecode


class FirstWindowForAll(KVCache):
    def __init__(self, config, dtype, device):
        super().__init__(config, dtype, device)
        self.layers = [CachedAttention(self, config.windows[-1]) for _ in config.windows]


@plant("P3-11", probes.logits("qwen3", steps=14))
class OneWindowForAllLayers(OtherCache):
    Cache = FirstWindowForAll


def two_at_once(engine_cls, lab):
    """The tokens of a request in whose middle another was run, and whether that one was refused."""
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    one, other = (engine.sequences([probes.ids(model, length)], lab.params(5))[0] for length in (12, 4))
    steps = engine.run([one])
    next(steps)
    try:
        list(engine.run([other]))
        refused = False
    except MinferError:
        refused = True
    list(steps)
    return refused, one.output_ids


@plant("P3-12", two_at_once)
class SecondStreamTakesTheCache(Engine):
    def admit(self, sequences):
        self.owners = []
        super().admit(sequences)
