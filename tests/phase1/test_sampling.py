"""Phase 1: which tokens can be drawn, and how often. Rows are made by hand, hundreds of seeds draw from each."""

import math
import random
from collections import Counter

DRAWS = 120  # a token of probability 0.09 is missed once in 80,000 times


def drawn(engine_cls, lab, probabilities, draws=DRAWS, **asked):
    """How often each token came, drawn with so many seeds from these probabilities."""
    engine = lab.engine(engine_cls, lab.model())
    logits = [math.log(p) for p in probabilities]
    params = [lab.params(4, **{"temperature": 1.0, "seed": lab.seed + i, **asked}) for i in range(draws)]
    return Counter(lab.sampled(engine, logits, params))


def test_P1_09_temperature_zero_is_greedy(engine_cls, lab):
    code, hint = "P1-09", "0 is no divisor; subtract the largest logit before you divide by something tiny"
    for temperature in (0.0, 1e-6, 1e-300):
        counts = drawn(engine_cls, lab, [0.3, 0.34, 0.36], temperature=temperature)
        lab.equal(dict(counts), {2: DRAWS}, code, f"drew {DRAWS} times at temperature {temperature}", hint)
    share = drawn(engine_cls, lab, [0.2, 0.8], draws=400, temperature=2.0)[1] / 400
    want = 1 / (1 + math.sqrt(0.2 / 0.8))
    lab.check(
        abs(share - want) < 0.1,
        code,
        "drew from the probabilities 0.2 and 0.8 at temperature 2",
        f"the second in {want:.0%} of draws",
        f"in {share:.0%}",
        "divide the logits, not the probabilities",
    )


def test_P1_10_top_p_keeps_the_token_that_crosses_p(engine_cls, lab):
    hint = "keep the fewest tokens whose sum reaches p: the one that crosses it is among them, and one at least"
    cases = [(0.9, {0, 1}), (1e-9, {0}), (1.0, {0, 1, 2}), (0.49, {0}), (0.51, {0, 1})]
    for p, kept in cases:
        counts = drawn(engine_cls, lab, [0.5, 0.41, 0.09], top_p=p)
        lab.equal(set(counts), kept, "P1-10", f"drew {DRAWS} times from [.5, .41, .09] with top_p={p}", hint)
    counts = drawn(engine_cls, lab, [0.09, 0.5, 0.41], top_p=0.9)
    did = f"drew {DRAWS} times from [.09, .5, .41] with top_p=0.9"
    lab.equal(set(counts), {1, 2}, "P1-10", did, "sorted order is not the order of the vocabulary")


def test_P1_11_top_k_keeps_exactly_k(engine_cls, lab):
    hint = "exactly the k highest, the lower id where two are equal; what is left is drawn from as if it were all"
    row = [0.1, 0.4, 0.2, 0.3]
    cases = [(1, {1}), (2, {1, 3}), (3, {1, 2, 3}), (4, {0, 1, 2, 3}), (0, {0, 1, 2, 3})]
    for k, kept in [*cases, (lab.sizes.vocab + 5, {0, 1, 2, 3})]:
        counts = drawn(engine_cls, lab, row, top_k=k)
        lab.equal(set(counts), kept, "P1-11", f"drew {DRAWS} times from {row} with top_k={k}", hint)
    counts = drawn(engine_cls, lab, [0.25, 0.25, 0.25, 0.25], top_k=2)
    lab.equal(set(counts), {0, 1}, "P1-11", f"drew {DRAWS} times from four equal tokens with top_k=2", hint)
    share = drawn(engine_cls, lab, row, draws=400, top_k=2)[1] / 400
    lab.check(
        abs(share - 4 / 7) < 0.1,
        "P1-11",
        f"drew 400 times from {row} with top_k=2",
        "token 1 in 4/7 = 57% of draws",
        f"in {share:.0%}",
        "renormalise over what is kept",
    )


def test_P1_12_draws_belong_to_the_request(engine_cls, lab):
    import torch

    code, hint = "P1-12", "one uniform number per draw, made from (the request's seed, the token's position) alone"
    engine = lab.engine(engine_cls, lab.constant(torch.zeros(lab.sizes.vocab)))
    asked = {"temperature": 1.0, "seed": lab.seed}
    limit = engine.context - 1
    first = engine.generate([[5]], lab.params(limit, **asked))[0].token_ids
    did = f"drew {limit} tokens from equal logits"
    lab.check(len(set(first)) > 10, code, did, "more than 10 different", f"{len(set(first))} different", hint)
    torch.manual_seed(1)
    random.seed(1)
    torch.rand(100)
    lab.equal(engine.generate([[5]], lab.params(limit, **asked))[0].token_ids, first, code, "drew them again", hint)
    other = engine.generate([[5]], lab.params(limit, **{**asked, "seed": lab.seed + 1}))[0].token_ids
    lab.check(other != first, code, "drew with another seed", "other tokens", "the same", hint)
    unseeded = [engine.generate([[5]], lab.params(limit, temperature=1.0))[0].token_ids for _ in range(2)]
    lab.check(unseeded[0] != unseeded[1], code, "drew twice without a seed", "other tokens", "the same", hint)
    state = torch.get_rng_state()
    engine.generate([[5]], lab.params(4, **asked))
    lab.check(bool((torch.get_rng_state() == state).all()), code, "drew with a seed", "torch's own generator as it was",
              "one that was used", hint)  # fmt: skip


def test_P1_17_min_p_penalties_and_bias(engine_cls, lab):
    code = "P1-17"
    row = [0.1, 0.5, 0.15, 0.25]
    for least, kept in ((0.0, {0, 1, 2, 3}), (0.25, {1, 2, 3}), (0.4, {1, 3}), (1.0, {1})):
        counts = drawn(engine_cls, lab, row, min_p=least)
        did = f"drew {DRAWS} times from {row} with min_p={least}"
        lab.equal(set(counts), kept, code, did, "min_p is a share of the likeliest token's probability")
    cases = [  # logits of tokens 5, 6 and 7, what is asked, the greedy answer to the prompt [5]
        ([4.0, 3.5, 3.0], {}, [5, 5, 5, 5]),
        ([4.0, 3.5, 3.0], {"logit_bias": {7: 2.0}}, [7, 7, 7, 7]),
        ([4.0, 3.5, 3.0], {"logit_bias": {5: -1.5, 6: -0.25}}, [6, 6, 6, 6]),
        ([4.0, 3.5, 3.0], {"presence_penalty": 0.75}, [5, 6, 5, 5]),
        ([4.0, 3.5, 3.0], {"frequency_penalty": 0.75}, [5, 6, 5, 7]),
        ([4.0, 3.5, 3.0], {"repetition_penalty": 1.25}, [6, 5, 5, 5]),
        ([-6.0, -6.5, -7.0], {"repetition_penalty": 1.25}, [6, 7, 5, 5]),
    ]
    for logits, asked, want in cases:
        row = [-10.0] * 5 + logits + [-10.0] * (lab.sizes.vocab - 8)
        engine = lab.engine(engine_cls, lab.constant(_tensor(row)))
        (run,) = lab.run(engine, [[5]], lab.params(4, **asked))
        did = f"greedy from logits {logits} of tokens 5, 6, 7, after the prompt [5], with {asked or 'no penalty'}"
        hint = "repetition sees the prompt too, presence and frequency do not; a negative logit is multiplied"
        lab.equal(run.token_ids, want, code, did, hint)


def _tensor(values):
    import torch

    return torch.tensor(values)
