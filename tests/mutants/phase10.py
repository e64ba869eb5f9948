"""Mistakes of phase 10: sums, biases, heads, parts, columns, draws, skipped operations, reads, vocabulary, stages."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial

import torch
import torch.nn.functional as F

from minfer.core.group import RankError
from minfer.core.model import RMSNorm
from minfer.phase10 import Engine, ShardPlan
from minfer.phase10.parallel_layers import RowParallel, VocabularyEmbedding, VocabularyHead
from minfer.phase10.ranks import Ranks
from minfer.phase10.replica_message import Take, TakeBack
from minfer.phase10.shard_plan import Part
from tests.mutants import probes
from tests.mutants.planting import Mutants
from tests.phase10.dealt import Dealt
from tests.phase10.test_replicas import asked, running, share_out, two

MUTANTS = Mutants(phase=10)
plant = MUTANTS.plant


@cache
def answer(family="llama", tensor=2, pipeline=1, **params):
    """The logits of some steps, dealt."""

    def probe(engine_cls, lab):
        with Dealt(engine_cls, lab, family, tensor, pipeline) as dealt:
            prompts = [probes.ids(dealt.model, 6)]
            return lab.run(dealt.engine, prompts, lab.params(4, **params))[0].logits.round(6).tolist()

    return probe


class Exchanged(Engine):
    """Phase 10 with another shard."""

    @classmethod
    def build_model(cls, checkpoint, options):
        model = super().build_model(checkpoint, options)
        if isinstance(options.ranks, Ranks):
            for module in list(model.modules()):
                cls.exchange(module, options.ranks)
        return model

    @classmethod
    def exchange(cls, module, ranks):
        pass


# ---- sums and biases -------------------------------------------------------------------------------------------------


class NotSummed(RowParallel):
    def forward(self, x):
        y = self.linear(x)
        return y if self.bias is None else y + self.bias


@plant("P10-01", answer())
class NoSumAfterAttention(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if hasattr(module, "o_proj") and ranks.tensor.size > 1:
            module.o_proj.__class__ = NotSummed


@plant("P10-01", answer())
class NoSumAfterTheMLP(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if hasattr(module, "down_proj") and ranks.tensor.size > 1:
            module.down_proj.__class__ = NotSummed


class SummedTwice(RowParallel):
    def forward(self, x):
        return self.group.all_reduce(super().forward(x))


class AveragedAgain(RowParallel):
    def forward(self, x):
        return self.group.all_reduce(super().forward(x) / self.group.size)


def operations(engine_cls, lab):
    with Dealt(engine_cls, lab, "llama", 2) as dealt:
        lab.run(dealt.engine, [probes.ids(dealt.model, 3)], lab.params(1))
        return dealt.counts()


@plant("P10-02", answer())
class SumsOfSums(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if isinstance(module, RowParallel):
            module.__class__ = SummedTwice


@plant("P10-02", operations)
class OneSumTooMany(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if isinstance(module, RowParallel):
            module.__class__ = AveragedAgain


class BiasInEverySummand(RowParallel):
    def forward(self, x):
        y = self.linear(x)
        return self.group.all_reduce(y if self.bias is None else y + self.bias)


@plant("P10-03", answer("biased"))
class AddsTheBiasOnEveryRank(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if isinstance(module, RowParallel):
            module.__class__ = BiasInEverySummand


# ---- what belongs to whom --------------------------------------------------------------------------------------------


def truncated(plan):
    """As many key/value heads for each rank as come out even; what is left over is lost."""
    config, place = plan.whole, plan.place
    each, group = max(1, config.num_kv_heads // place.parts), config.num_heads // config.num_kv_heads
    first = min(place.part * each, config.num_kv_heads - each)
    return range(first, first + each), range(first * group, (first + each) * group)


class TruncatedPlan(ShardPlan):
    def __init__(self, config, place):
        kv_heads = config.num_kv_heads
        fits = kv_heads >= place.parts or place.parts % kv_heads == 0
        super().__init__(config, place if fits else replace(place, parts=1, part=0))
        self.place = place
        self.kv_heads, self.heads = truncated(self)
        self.config = replace(self.config, num_heads=len(self.heads), num_kv_heads=len(self.kv_heads))


@plant("P10-04", answer())
class LosesHeads(Engine):
    Plan = TruncatedPlan


class EvenPlan(ShardPlan):
    """Right where it comes out even; too few heads are the first ones, on all ranks."""

    def __init__(self, config, place):
        kv_heads = config.num_kv_heads
        even = kv_heads >= place.parts or (place.parts % kv_heads == 0 and config.num_heads >= place.parts)
        super().__init__(config, place if even else replace(place, parts=kv_heads, part=0))


def refused(engine_cls, lab):
    with Dealt(engine_cls, lab, "llama", lab.sizes.kv_heads + 1):
        return "loaded"


@plant("P10-04", lambda engine_cls, lab: probes.outcome(refused, engine_cls, lab))
class RefusesNothing(Engine):
    Plan = EvenPlan


class OneBlockPlan(ShardPlan):
    def _ranges(self, layer, owner):
        if layer != "c_attn":
            return super()._ranges(layer, owner)
        head_dim = self.whole.head_dim
        return [range(3 * self.heads.start * head_dim, 3 * self.heads.stop * head_dim)]


@plant("P10-05", answer("gpt2"))
class CutsFusedAsOne(Engine):
    Plan = OneBlockPlan


class LastColumnsPlan(ShardPlan):
    layer = ""

    def part(self, name):
        part = super().part(name)
        if self.place.parts == 1 or part.dim != 1 or self.layer not in name:
            return part
        total = self.whole.intermediate_size
        if name.endswith("o_proj.weight") or ".attn." in name:
            total = self.whole.num_heads * self.whole.head_dim
        return Part(1, [range(total - part.size, total)], part.size)


@plant("P10-06", answer())
class TakesOtherColumns(Engine):
    Plan = LastColumnsPlan


class WrongDimensionPlan(ShardPlan):
    def part(self, name):
        part = super().part(name)
        return Part(0, part.ranges, part.size) if part.dim == 1 else part


@plant("P10-06", lambda engine_cls, lab: probes.outcome(answer(), engine_cls, lab), crashes=True)
class CutsRowsForColumns(Engine):
    Plan = WrongDimensionPlan


# ---- who decides, and who takes part ---------------------------------------------------------------------------------


@plant("P10-07", answer(temperature=3.0, seed=1))
class EachDrawsForItself(Engine):
    def forward(self, batch):
        if self.ranks and not self.ranks.decides and len(batch.rows) == len(batch.input_ids):
            own = torch.Generator().manual_seed(self.ranks.place.rank)
            drawn = torch.randint(self.config.vocab_size, batch.input_ids.shape, generator=own)
            batch = replace(batch, input_ids=drawn)
        return super().forward(batch)


class NotOnOneRow(RowParallel):
    def forward(self, x):
        if self.group.rank == 1 and x.shape[0] == 1:
            return self.linear(x)
        return super().forward(x)


@plant("P10-08", lambda engine_cls, lab: probes.outcome(answer(), engine_cls, lab), crashes=True)
class SkipsASum(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if isinstance(module, RowParallel):
            module.__class__ = NotOnOneRow


@plant("P10-08", lambda engine_cls, lab: probes.outcome(answer(pipeline=2), engine_cls, lab), crashes=True)
class SumsOnlyWhereItCounts(Engine):
    """The ranks beside the one that draws do not see why they should gather logits."""

    @classmethod
    def build_model(cls, checkpoint, options):
        model = super().build_model(checkpoint, options)
        if isinstance(options.ranks, Ranks) and options.ranks.place.part and isinstance(model.lm_head, VocabularyHead):
            head = model.lm_head
            head.forward = lambda x: F.linear(x, head.weight)
        return model


@plant("P10-09", lambda engine_cls, lab: read(engine_cls, lab))
class ReadsEverything(Engine):
    @classmethod
    def build_model(cls, checkpoint, options):
        ranks = options.ranks
        if isinstance(ranks, Ranks):
            begin = ranks.begin
            ranks.begin = lambda most, _: begin(most, checkpoint.nbytes)
        return super().build_model(checkpoint, options)


def read(engine_cls, lab):
    with Dealt(engine_cls, lab, "llama", 2) as dealt:
        return dealt.engine.ranks.bytes_read


# ---- the vocabulary --------------------------------------------------------------------------------------------------


class Unmasked(VocabularyEmbedding):
    def forward(self, input_ids):
        return self.group.all_reduce(
            F.embedding((input_ids - self.first).clamp(0, self.num_embeddings - 1), self.weight)
        )


@plant("P10-10", answer())
class KnowsAllTokens(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if isinstance(module, VocabularyEmbedding):
            module.__class__ = Unmasked


@plant("P10-10", answer())
class KeepsThePadding(Exchanged):
    @classmethod
    def exchange(cls, module, ranks):
        if isinstance(module, VocabularyHead):
            module.vocabulary = module.group.size * len(module.weight)


class ShortPlan(ShardPlan):
    def __init__(self, config, place):
        super().__init__(config, place)
        self.rows = config.vocab_size // place.parts


@plant("P10-10", lambda engine_cls, lab: probes.outcome(answer(), engine_cls, lab), crashes=True)
class LosesTheLastTokens(Engine):
    Plan = ShortPlan


# ---- stages ----------------------------------------------------------------------------------------------------------


class OverlappingPlan(ShardPlan):
    def name_in_whole(self, name):
        made = super().name_in_whole(name)
        return made.replace(f".{self.layers[0]}.", ".0.", 1) if self.place.stage and made.startswith("layers") else made


@plant("P10-11", answer(pipeline=2, tensor=1))
class ALayerTwice(Engine):
    Plan = OverlappingPlan


class FirstWindowsPlan(ShardPlan):
    def __init__(self, config, place):
        super().__init__(config, place)
        self.config = replace(self.config, windows=self.whole.windows[: len(self.layers)])


@plant("P10-11", answer("qwen3", pipeline=2, tensor=1))
class WindowsOfTheFirstLayers(Engine):
    Plan = FirstWindowsPlan


@plant("P10-11", answer(pipeline=2, tensor=1))
class NormsOnEveryStage(Engine):
    @classmethod
    def build_model(cls, checkpoint, options):
        model = super().build_model(checkpoint, options)
        if isinstance(options.ranks, Ranks) and not options.ranks.place.is_last and hasattr(model, "norm"):
            model.norm = RMSNorm(checkpoint.config.hidden_size, checkpoint.config.norm_eps).double()
        return model


@plant("P10-11", lambda engine_cls, lab: probes.outcome(answer(pipeline=2, tensor=1), engine_cls, lab), crashes=True)
class GivesOnOnlyWhatIsDrawn(Engine):
    """A stage that is not the last picks the rows of logits already."""

    def allocate(self):
        super().allocate()
        self.model._forward_pre_hooks.clear()


# ---- failures --------------------------------------------------------------------------------------------------------


def after_a_failure(engine_cls, lab):
    """What is said when a step is asked for after one that has failed on rank 0."""
    with Dealt(engine_cls, lab, "llama", 2) as dealt:
        block = dealt.engine.model.layers[1]
        block.enter = lambda *_: 1 // 0
        prompts = [probes.ids(dealt.model, 3)]
        first = probes.outcome(lambda *_: lab.run(dealt.engine, prompts, lab.params(2)), engine_cls, lab)
        del block.enter
        try:
            lab.run(dealt.engine, prompts, lab.params(2))
        except RankError as error:
            return first, "division" in str(error)
        return first, "answered"


@plant("P10-12", after_a_failure)
class GoesOn(Engine):
    def forward(self, batch):
        if self.ranks and self.ranks.decides:
            self.ranks.step = nullcontext
        return super().forward(batch)


# ---- replicas --------------------------------------------------------------------------------------------------------


def shared_out(engine_cls, lab):
    """What two replicas answer, and how many of six requests each has."""
    with two(engine_cls, lab) as (model, engine):
        answers = [one.token_ids for one in engine.generate(*asked(lab, model))]
        share_out(engine, lab)
        return answers, running(engine)


@plant("P10-13", shared_out)
class ForgetsTheSeed(Engine):
    def dispatch(self):
        for replica in self.replicas.all if self.replicas else ():
            replica.send = partial(self.without_seed, replica)
        super().dispatch()

    @staticmethod
    def without_seed(replica, message):
        replica.link.send(replace(message, seed=message.id + 1000) if isinstance(message, Take) else message)


@plant("P10-13", shared_out)
class FillsItselfFirst(Engine):
    def dispatch(self):
        if self.replicas:
            self.replicas.least_loaded = lambda own: self.replicas.all[0] if own >= self.options.max_batch else None
        super().dispatch()


def after_aborts(engine_cls, lab):
    """Who still computes when all requests were aborted."""
    with two(engine_cls, lab) as (_, engine):
        requests = share_out(engine, lab)
        return [engine.abort(one.id) for one in requests], running(engine)


@plant("P10-14", after_aborts)
class AbortsAtHome(Engine):
    def abort(self, request_id):
        replicas, self.replicas = self.replicas, None
        try:
            return super().abort(request_id)
        finally:
            self.replicas = replicas


@plant("P10-14", after_aborts)
class TellsNobody(Engine):
    def abort(self, request_id):
        for replica in self.replicas.all if self.replicas else ():
            replica.send = lambda message, link=replica.link: isinstance(message, TakeBack) or link.send(message)
        return super().abort(request_id)
