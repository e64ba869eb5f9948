"""The likely mistakes of a sampler, planted one by one: the test that each is paired with must fail.

The codes are those of the project's table of likely mistakes.
"""

import math

import pytest
import torch

from minfer.core.sampling import sampling, uniform
from tests.core import test_draws, test_filters, test_sampling
from tests.core.sampled import Request


def drop_the_crossing_token(weights, p):
    sorted_weights, order = weights.sort(dim=-1, descending=True, stable=True)
    kept = sorted_weights.cumsum(-1) <= p * weights.sum(-1, keepdim=True)
    kept[:, 0] = True
    return torch.zeros_like(weights).scatter(1, order, kept.to(weights.dtype))


def keep_one_token_more(weights, p):
    sorted_weights, order = weights.sort(dim=-1, descending=True, stable=True)
    kept = sorted_weights.cumsum(-1) - 2 * sorted_weights < p * weights.sum(-1, keepdim=True)
    return torch.zeros_like(weights).scatter(1, order, kept.to(weights.dtype))


def keep_all_equals(scores, k):
    return (scores >= scores.topk(max(k)).values.gather(1, torch.tensor(k).unsqueeze(1) - 1)).to(scores.dtype)


def softmax_before_temperature(scores, best, params):
    return scores.softmax(-1) / torch.tensor([[one.temperature] for one in params], dtype=scores.dtype)


def divide_negative_logits_too(scores, sequences):
    for row, one in zip(scores, sequences, strict=True):
        row[list({*one.prompt_ids, *one.output_ids})] /= one.params.repetition_penalty


def reward_repeats(sequence, original=sampling._additions):
    return {token_id: -value for token_id, value in original(sequence).items()}


def first_rows_params_for_all(logits, sequences, original=sampling.sample):
    return original(
        logits, [Request(sequences[0].params, s.seed, s.prompt_ids, s.output_ids, s.end_ids) for s in sequences]
    )


def nan_to_zero(logits, sequences, original=sampling.sample):
    return original(logits.nan_to_num(0, 0), sequences)


def anew_each_step(seed, position):
    return uniform(seed, 0)


def divide_by_temperature_zero(logits, sequences):
    temperature = torch.tensor([[one.params.temperature] for one in sequences], dtype=logits.dtype)
    return torch.multinomial((logits / temperature).softmax(-1), 1).squeeze(1)


MUTANTS = {
    "P1-09 temperature 0 divides by zero": (
        "sample",
        divide_by_temperature_zero,
        test_sampling.test_temperature_zero_is_argmax_and_the_lowest_id_wins_a_tie,
    ),
    "P1-10 top_p drops the token that crosses p": (
        "top_p_mask",
        drop_the_crossing_token,
        test_filters.test_top_p_keeps_the_token_that_crosses_p,
    ),
    "P1-10 top_p keeps one too many": (
        "top_p_mask",
        keep_one_token_more,
        test_filters.test_top_p_keeps_the_token_that_crosses_p,
    ),
    "softmax before temperature": (
        "_weights",
        softmax_before_temperature,
        test_filters.test_top_p_sees_what_top_k_left_and_temperature_comes_first,
    ),
    "negative logits are divided by the penalty": (
        "_repel_repeats",
        divide_negative_logits_too,
        test_sampling.test_the_repetition_penalty_lowers_seen_tokens_of_either_sign,
    ),
    "penalties have the wrong sign": (
        "_additions",
        reward_repeats,
        test_sampling.test_presence_and_frequency_penalties_count_the_output_only,
    ),
    "P1-12 draws come from the global generator": (
        "uniform",
        lambda seed, position: float(torch.rand(())),
        test_draws.test_the_same_seed_gives_the_same_draws_whatever_else_uses_the_generators,
    ),
    "P1-12 every step is seeded anew": (
        "uniform",
        lambda seed, position: uniform(seed, 0),
        test_draws.test_each_step_draws_anew,
    ),
    "P1-12 the seed is ignored": (
        "uniform",
        lambda seed, position: uniform(0, position),
        test_draws.test_the_same_seed_gives_the_same_draws_whatever_else_uses_the_generators,
    ),
    "the first row's parameters count for all": (
        "sample",
        first_rows_params_for_all,
        test_draws.test_company_and_order_cannot_change_a_row,
    ),
}


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS.values(), ids=MUTANTS)
def test_a_planted_mistake_is_found(monkeypatch, name, mutant, test):
    monkeypatch.setattr(sampling, name, mutant)
    needs_monkeypatch = "monkeypatch" in test.__code__.co_varnames[: test.__code__.co_argcount]
    with pytest.raises((AssertionError, RuntimeError)):
        test(monkeypatch) if needs_monkeypatch else test()


def test_keeping_all_equals_in_top_k_is_found(monkeypatch):
    monkeypatch.setattr(sampling, "top_k_mask", keep_all_equals)
    with pytest.raises(AssertionError):
        test_filters.test_top_k_keeps_exactly_k(monkeypatch, *test_filters.TOP_K["exactly k of equals"])


def test_overlooking_nan_is_found(monkeypatch):
    monkeypatch.setattr(sampling, "sample", nan_to_zero)
    with pytest.raises(AssertionError):
        test_sampling.test_nan_and_infinity_are_reported_for_their_row_alone(math.nan, {})
