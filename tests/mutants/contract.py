"""Mistakes that any phase can make, planted in phase 3: the interface, shared state, answers, limits."""

from functools import cache

import torch

from minfer.core.errors import RequestError
from minfer.core.sequence import FinishReason
from minfer.phase3 import Engine
from minfer.phase3.kv_cache import CachedAttention, KVCache
from tests.mutants import probes
from tests.mutants.phase3 import CacheNotReset, DecodeForgetsTheWindow
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=3)
plant = MUTANTS.plant


# ---- the interface ---------------------------------------------------------------------------------------------------


def kinds(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model())
    made = engine.generate([5, 6], lab.params(2))
    return type(made), [type(token_id) for token_id in made[0].token_ids] if isinstance(made, list) else None


@plant("P0-04", kinds)
class OneCompletionNotAList(Engine):
    def generate(self, prompts, params=None):
        made = super().generate(prompts, params)
        return made[0] if len(made) == 1 else made


@plant("P0-04", kinds)
class TokensAsTensors(Engine):
    def commit(self, sequences, token_ids):
        super().commit(sequences, token_ids)
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            sequence.output_ids[-1] = token_id


@plant("P0-04", lambda cls, lab: lab.engine(cls, lab.model()).generate([5]), crashes=True)
class ParamsRequired(Engine):
    def generate(self, prompts, params):
        return super().generate(prompts, params)


@plant("P0-04", lambda cls, lab: lab.engine(cls, lab.model(), lab.tokenizer()).stream(prompt=[5]), crashes=True)
class AnotherParameterName(Engine):
    def stream(self, text, params=None):
        return super().stream(text, params)


# ---- state that is shared --------------------------------------------------------------------------------------------


def in_turn(engine_cls, lab):
    engines = [lab.engine(engine_cls, lab.model()) for _ in range(2)]
    made = [e.sequences([probes.ids(lab.model(), 5 + i)], lab.params(4)) for i, e in enumerate(engines)]
    for _ in zip(*(engine.run(own) for engine, own in zip(engines, made, strict=True)), strict=True):
        pass
    return [e.record.rows(own[0], lab.sizes.vocab).round(6).tolist() for e, own in zip(engines, made, strict=True)]


@plant("P0-06", in_turn, crashes=True)
class CacheInTheClass(Engine):
    shared: dict[str, KVCache] = {}  # noqa: RUF012 (the mistake)

    @property
    def cache(self):
        return self.shared["cache"]

    @cache.setter
    def cache(self, cache):
        self.shared["cache"] = cache


@plant("P0-06", in_turn)
class LengthInTheClass(Engine):
    """How much is cached is counted in the class, which is what a second engine goes on with."""

    held: dict[str, int] = {}  # noqa: RUF012 (the mistake)

    def prepare(self, sequences):
        (sequence,) = sequences
        batch = super().prepare(sequences)
        start = self.held.get("length", 0) if sequence.num_cached else 0
        self.held["length"] = start + len(batch.positions)
        batch.positions = start + torch.arange(len(batch.positions))
        return batch


FIRST = []


def second_model(engine_cls, lab):
    other = type(lab)(lab.seed + 1, lab.new_folder)
    return [probes.logits()(engine_cls, each) for each in (lab, other)]


@plant("P0-07", second_model, crashes=True)
class FirstModelForEver(Engine):
    def prepare_model(self, model):
        FIRST.append(model)
        return FIRST[0]


# ---- answers ---------------------------------------------------------------------------------------------------------


@plant("P0-20", probes.logits())
class Float32Inside(Engine):
    def forward(self, batch):
        if self.model.norm.weight.dtype == torch.float64 if hasattr(self.model, "norm") else False:
            self.model.float()
            self.dtype = torch.float32
            self.cache = KVCache(self.config, self.dtype, self.device.torch_device)
            self.cache.reserve(batch.sequences)
            batch.attention = self.cache.begin(batch.positions)
        return super().forward(batch).double()


@plant("P0-20", probes.logits("mistral", steps=14))
class WindowForgotten(DecodeForgetsTheWindow):
    pass


class GatesSwapped(Engine):
    def prepare_model(self, model):
        for layer in getattr(model, "layers", ()):
            layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj
        return model


plant("P0-20", probes.logits())(GatesSwapped)


def in_float32(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model().module(torch.float32))
    return lab.run(engine, probes.ids(lab.model(), 5), lab.params(4))[0].logits.round(5)


@plant("P0-32", in_float32)
class CacheInBfloat16(Engine):
    def allocate(self):
        super().allocate()
        if self.dtype == torch.float32:
            self.cache = RoundingCache(self.config, self.dtype, self.device.torch_device)


class RoundingCache(KVCache):
    def __init__(self, config, dtype, device):
        super().__init__(config, dtype, device)
        self.layers = [RoundingLayer(self, window) for window in config.windows]


class RoundingLayer(CachedAttention):
    def update(self, k, v):
        return super().update(k.bfloat16(), v.bfloat16())


@cache
def limit(length=2, **options):
    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.model("tied"), **options)
        made = engine.generate([probes.ids(lab.model("tied"), length)], lab.params(None))
        return len(made[0].token_ids), made[0].finish_reason

    return probe


@plant("P0-21", limit())
class ContextOneShort(Engine):
    def allocate(self):
        super().allocate()
        self.reader.context -= 1


@plant("P0-21", limit(context=20))
class ContextOptionIgnored(Engine):
    def allocate(self):
        super().allocate()
        self.reader.context = self.config.context


@plant("P0-21", limit())
class FullContextIsAStop(Engine):
    def commit(self, sequences, token_ids):
        super().commit(sequences, token_ids)
        for sequence in sequences:
            if len(sequence.token_ids) == sequence.context:
                sequence.finish_reason = FinishReason.STOP


def whole_context(max_tokens):
    def probe(engine_cls, lab):
        engine = lab.engine(engine_cls, lab.model())
        return engine.generate([probes.ids(lab.model(), engine.context)], lab.params(max_tokens))[0].token_ids

    return probe


@plant("P0-22", whole_context(0), crashes=True)
class FullPromptRefused(Engine):
    def sequences(self, prompts, params=None):
        made = super().sequences(prompts, params)
        if any(sequence.num_prompt >= self.context for sequence in made):
            raise RequestError("the prompt is too long")
        return made


@plant("P0-22", whole_context(2))
class LongPromptCut(Engine):
    def sequences(self, prompts, params=None):
        prompts = [prompts] if isinstance(prompts[0], int) else prompts
        return super().sequences([prompt[: self.context - 1] for prompt in prompts], params)


@plant(
    "P0-22", lambda cls, lab: (e := lab.engine(cls, lab.model())).generate([5], lab.params(0)) and e.record.forwarded
)
class OneStepForNothing(Engine):
    def admit(self, sequences):
        super().admit(sequences)
        for sequence in sequences:
            if sequence.finished:
                self.forward(self.whole(sequence.prompt_ids, []))


@plant("P0-23", probes.logits(calls=2))
class FirstConversationContinued(CacheNotReset):
    pass
