"""Mistakes of phase 1's draws: temperature, filters, penalties, where the random numbers come from."""

import dataclasses

import torch

from tests.mutants import probes
from tests.mutants.own_sampler import OwnSampler
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=1)
plant = MUTANTS.plant

SPREAD = (0.5, 0.41, 0.09)


@plant("P1-09", probes.draws(SPREAD, temperature=0.0), crashes=True)
class DividesByZero(OwnSampler):
    def draw(self, scores, sequence):
        probabilities = torch.softmax(scores / sequence.params.temperature, dim=-1)
        return int(torch.multinomial(probabilities, 1))


@plant("P1-09", probes.draws(SPREAD, temperature=0.0))
class ZeroMeansDefault(OwnSampler):
    def draw(self, scores, sequence):
        params = dataclasses.replace(sequence.params, temperature=sequence.params.temperature or 1.0)
        sequence.params = params
        return super().draw(scores, sequence)


@plant("P1-09", probes.draws(SPREAD, temperature=1e-6))
class OverflowsWhenCold(OwnSampler):
    def softmax(self, scores, temperature):
        weights = torch.exp(scores / temperature)
        return torch.nan_to_num(weights / weights.sum(), nan=1.0)


@plant("P1-09", probes.draws((0.2, 0.8), temperature=2.0, seeds=400))
class DividesProbabilities(OwnSampler):
    def softmax(self, scores, temperature):
        return torch.softmax(scores, dim=-1) / max(temperature, 1e-300)


class ChangedTopP(OwnSampler):
    """A sampler that keeps the sorted tokens for which `keeps(cumulative, own, p)` holds."""

    def keep_top_p(self, probabilities, params):
        order = torch.sort(probabilities, descending=True, stable=True).indices
        own = probabilities[order]
        kept = order[self.keeps(own.cumsum(-1), own, params.top_p)]
        return torch.zeros_like(probabilities).index_fill(0, kept, 1.0)


@plant("P1-10", probes.draws(SPREAD, top_p=0.9))
class DropsTheTokenThatCrosses(ChangedTopP):
    def keeps(self, cumulative, own, p):
        kept = cumulative <= p
        kept[0] = True
        return kept


@plant("P1-10", probes.draws(SPREAD, top_p=0.45))
class KeepsOneTooMany(ChangedTopP):
    def keeps(self, cumulative, own, p):
        return cumulative - 2 * own < p


@plant("P1-10", probes.draws(SPREAD, top_p=1e-9))
class KeepsNone(ChangedTopP):
    def keeps(self, cumulative, own, p):
        return cumulative <= p if p < 0.1 else cumulative - own < p

    def renormalised(self, probabilities):
        return probabilities / probabilities.sum() if probabilities.sum() else torch.ones_like(probabilities) / 3


@plant("P1-10", probes.draws((0.09, 0.5, 0.41), top_p=0.9))
class TopPUnsorted(OwnSampler):
    def keep_top_p(self, probabilities, params):
        return (probabilities.cumsum(-1) - probabilities < params.top_p).to(probabilities)


@plant("P1-11", probes.draws(SPREAD, top_k=1))
class TopKStrictlyAbove(OwnSampler):
    def keep_top_k(self, probabilities, params):
        k = min(params.top_k or len(probabilities), len(probabilities))
        kept = probabilities > probabilities.topk(k).values[-1]
        return (kept if kept.any() else torch.ones_like(kept)).to(probabilities)


@plant("P1-11", probes.draws((0.25,) * 4, top_k=2))
class TopKKeepsTies(OwnSampler):
    def keep_top_k(self, probabilities, params):
        k = min(params.top_k or len(probabilities), len(probabilities))
        return (probabilities >= probabilities.topk(k).values[-1]).to(probabilities)


@plant("P1-11", probes.draws((0.1, 0.4, 0.2, 0.3), top_k=2, seeds=400))
class NotRenormalised(OwnSampler):
    def renormalised(self, probabilities):
        return probabilities


@plant("P1-11", probes.draws(SPREAD, top_k=1000), crashes=True)
class TopKBeyondTheVocabulary(OwnSampler):
    def keep_top_k(self, probabilities, params):
        kept = probabilities.topk(params.top_k or len(probabilities)).indices
        return torch.zeros_like(probabilities).index_fill(0, kept, 1.0)


@plant("P1-12", probes.sampled_answer())
class GlobalGenerator(OwnSampler):
    def uniform(self, sequence):
        return float(torch.rand(1))


@plant("P1-12", probes.sampled_answer())
class SameNumberAtEveryStep(OwnSampler):
    def uniform(self, sequence):
        return float(torch.rand(1, generator=torch.Generator().manual_seed(sequence.seed % 2**63)))


@plant("P1-12", probes.sampled_answer())
class OneGeneratorForAll(OwnSampler):
    def uniform(self, sequence):
        if not hasattr(self, "generator"):
            self.generator = torch.Generator().manual_seed(sequence.seed % 2**63)
        return float(torch.rand(1, generator=self.generator))


@plant("P1-12", probes.sampled_answer())
class SeedsTheGlobalGenerator(OwnSampler):
    def uniform(self, sequence):
        torch.manual_seed((sequence.seed + len(sequence.token_ids)) % 2**63)
        return float(torch.rand(1))


@plant("P1-17", probes.draws((0.1, 0.5, 0.15, 0.25), min_p=0.25))
class MinPAbsolute(OwnSampler):
    def keep_min_p(self, probabilities, params):
        return (probabilities >= min(params.min_p, float(probabilities.max()))).to(probabilities)


@plant("P1-17", probes.greedy((-6.0, -6.5, -7.0), repetition_penalty=1.25))
class NegativeLogitsDivided(OwnSampler):
    def repelled(self, score, penalty):
        return score / penalty


@plant("P1-17", probes.greedy((4.0, 3.5, 3.0), presence_penalty=0.75))
class PresenceSeesThePrompt(OwnSampler):
    def counted(self, sequence):
        return type(super().counted(sequence))(sequence.token_ids)


@plant("P1-17", probes.greedy((4.0, 3.5, 3.0), frequency_penalty=0.75))
class FrequencyCountsOnce(OwnSampler):
    def counted(self, sequence):
        return dict.fromkeys(sequence.output_ids, 1)
