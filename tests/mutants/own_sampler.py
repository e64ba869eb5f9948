"""A sampler of another make: it sorts, and draws from torch generators that are made of (seed, position).

As it stands it is right (`tests/mutants/correct.py`); planted bugs change one of its steps.
"""

import math
from collections import Counter

import torch

from minfer.core.sampling.logprobs import record_logprobs
from minfer.phase1 import Engine


class OwnSampler(Engine):
    """Phase 1 with every step of the draw as a method of its own."""

    def sample(self, logits, sequences):
        drawn = [self.draw(row.to(torch.float64), sequence) for row, sequence in zip(logits, sequences, strict=True)]
        token_ids = torch.tensor(drawn, device=logits.device)
        record_logprobs(logits, token_ids, sequences)
        return token_ids

    def draw(self, scores, sequence):
        if not torch.isfinite(scores).all():
            return -1
        params = sequence.params
        scores = self.penalised(scores.clone(), sequence)
        if params.temperature == 0:
            return self.most_likely(scores)
        probabilities = self.softmax(scores, params.temperature)
        for keep in (self.keep_top_k, self.keep_top_p, self.keep_min_p):
            probabilities = self.renormalised(probabilities * keep(probabilities, params))
        return self.pick(probabilities, self.uniform(sequence))

    def most_likely(self, scores):
        return int((scores == scores.max()).nonzero()[0, 0])

    def penalised(self, scores, sequence):
        params = sequence.params
        for token_id in set(sequence.prompt_ids) | set(sequence.output_ids):
            scores[token_id] = self.repelled(scores[token_id], params.repetition_penalty)
        for token_id, count in self.counted(sequence).items():
            scores[token_id] -= params.presence_penalty + params.frequency_penalty * count
        for token_id, bias in params.logit_bias.items():
            scores[token_id] += bias
        if len(sequence.output_ids) < params.min_tokens:
            scores[list(sequence.end_ids)] = -math.inf
        return scores

    def counted(self, sequence):
        return Counter(sequence.output_ids)

    def repelled(self, score, penalty):
        return score / penalty if score > 0 else score * penalty

    def softmax(self, scores, temperature):
        return torch.softmax((scores - scores.max()) / max(temperature, 1e-300), dim=-1)

    def keep_top_k(self, probabilities, params):
        k = min(params.top_k or len(probabilities), len(probabilities))
        order = torch.sort(probabilities, descending=True, stable=True).indices
        return torch.zeros_like(probabilities).index_fill(0, order[:k], 1.0)

    def keep_top_p(self, probabilities, params):
        order = torch.sort(probabilities, descending=True, stable=True).indices
        before = probabilities[order].cumsum(-1) - probabilities[order]
        kept = order[before < params.top_p]
        return torch.zeros_like(probabilities).index_fill(0, kept, 1.0)

    def keep_min_p(self, probabilities, params):
        return (probabilities >= params.min_p * probabilities.max()).to(probabilities)

    def renormalised(self, probabilities):
        return probabilities / probabilities.sum()

    def pick(self, probabilities, point):
        reached = (probabilities.cumsum(-1) > point).nonzero()
        return int(reached[0, 0]) if len(reached) else int(probabilities.nonzero()[-1, 0])

    def uniform(self, sequence):
        position = len(sequence.token_ids)
        generator = torch.Generator().manual_seed(hash((sequence.seed, position)) % 2**63)
        return float(torch.rand(1, generator=generator, dtype=torch.float64))
