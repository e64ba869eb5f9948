"""top_k, top_p and min_p: hand-made rows through the sampler, and the masks against a sort."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.core.sampling.filters import top_k_mask, top_p_mask
from tests.core.sampled import assert_distribution, pick, reached, sample_at

torch.set_num_threads(1)


def test_top_p_keeps_the_token_that_crosses_p(monkeypatch):
    assert reached(monkeypatch, [0.5, 0.41, 0.09], top_p=0.9) == {0, 1}


TOP_P = {
    "tiny p keeps the likeliest": ([0.09, 0.5, 0.41], 1e-9, {1}),
    "p of one keeps all": ([0.5, 0.41, 0.09], 1.0, {0, 1, 2}),
    "p reached exactly needs no more": ([0.5, 0.4, 0.1], 0.9, {0, 1}),
    "p just above needs one more": ([0.5, 0.4, 0.1], 0.9001, {0, 1, 2}),
    "of equals the lower ids are kept": ([0.25, 0.25, 0.25, 0.25], 0.5, {0, 1}),
    "of equals after a larger one too": ([0.2, 0.2, 0.4, 0.2], 0.7, {0, 1, 2}),
    "impossible tokens stay so": ([0.0, 0.7, 0.0, 0.3], 0.999, {1, 3}),
}


@pytest.mark.parametrize(("probabilities", "top_p", "kept"), TOP_P.values(), ids=TOP_P)
def test_top_p_keeps_the_fewest_tokens_that_reach_p(monkeypatch, probabilities, top_p, kept):
    assert reached(monkeypatch, probabilities, top_p=top_p) == kept


TOP_K = {
    "one is greedy": ([0.2, 0.5, 0.3], 1, {1}),
    "one of equals is the lowest id": ([0.2, 0.4, 0.4], 1, {1}),
    "exactly k of equals": ([0.25, 0.25, 0.25, 0.25], 3, {0, 1, 2}),
    "the vocabulary is all": ([0.2, 0.5, 0.3], 3, {0, 1, 2}),
    "more than the vocabulary is all": ([0.2, 0.5, 0.3], 8, {0, 1, 2}),
    "zero is off": ([0.2, 0.5, 0.3], 0, {0, 1, 2}),
}


@pytest.mark.parametrize(("probabilities", "top_k", "kept"), TOP_K.values(), ids=TOP_K)
def test_top_k_keeps_exactly_k(monkeypatch, probabilities, top_k, kept):
    assert reached(monkeypatch, probabilities, top_k=top_k) == kept


def test_top_k_orders_by_logit_even_where_the_temperature_makes_all_equal():
    assert {pick([1.0, 3.0, 2.0], temperature=1e20, top_k=2, seed=s) for s in range(40)} == {1, 2}


def test_min_p_is_a_share_of_the_likeliest(monkeypatch):
    assert reached(monkeypatch, [0.6, 0.31, 0.09], min_p=0.5) == {0, 1}
    assert reached(monkeypatch, [0.6, 0.31, 0.09], min_p=0.55) == {0}
    assert reached(monkeypatch, [0.4, 0.2, 0.4], min_p=1.0) == {0, 2}


def test_top_p_sees_what_top_k_left_and_temperature_comes_first(monkeypatch):
    # of the two that top_k leaves, renormalised to .62 and .38, the first alone reaches .6; of all three it has .5
    assert reached(monkeypatch, [0.5, 0.31, 0.19], top_k=2, top_p=0.6) == {0}
    # at temperature 2 the probabilities are .42, .33, .25: two are needed for .7, while .5 + .31 would reach .8
    row = torch.tensor([0.5, 0.31, 0.19], dtype=torch.float64).log()
    points = [i / 500 for i in range(500)]
    assert set(sample_at(monkeypatch, row, points, temperature=2.0, top_p=0.8)) == {0, 1, 2}


def test_what_is_left_is_renormalised(monkeypatch):
    row = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    assert_distribution(monkeypatch, row, torch.tensor([0.625, 0.375, 0.0]), temperature=1.0, top_k=2)


def sorted_top_p(weights, p):
    """The kept tokens by a stable sort: the definition that the bisection must equal."""
    kept, mass, total = set(), 0, sum(weights)
    for i in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        if mass >= p * total:
            break
        kept.add(i)
        mass += weights[i]
    return kept


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 2**-11, 2**-12, 0.125, 0.25, 0.5]), min_size=1, max_size=12),
    st.sampled_from([1 / 64, 0.25, 0.5, 0.75, 63 / 64]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_bisection_of_top_p_equals_a_sort(weights, p, dtype):
    weights = [1.0, *weights]  # the likeliest token's weight is always 1; all sums here are exact
    mask = top_p_mask(torch.tensor([weights], dtype=dtype), torch.tensor([[p]], dtype=dtype))
    assert set(mask[0].nonzero().flatten().tolist()) == sorted_top_p(weights, p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_tells_neighbouring_floats_apart(dtype):
    half = torch.tensor(0.5, dtype=dtype)
    more = half.nextafter(2 * half)
    weights = torch.stack([2 * half, half, more, more, half]).unsqueeze(0)
    assert top_p_mask(weights, torch.tensor([[0.45]], dtype=dtype)).tolist() == [[1, 0, 1, 0, 0]]
    assert top_p_mask(weights, torch.tensor([[0.75]], dtype=dtype)).tolist() == [[1, 1, 1, 1, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_brings_no_token_more_into_top_p(dtype):
    cases = [(some, size) for size in range(2, 60) for some in range(1, size)]
    kept = [
        int(top_p_mask(torch.ones(1, size, dtype=dtype), torch.tensor([[some / size]], dtype=dtype)).sum())
        for some, size in cases[::7]
    ]
    assert kept == [some for some, _ in cases[::7]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bisection_of_top_p_equals_a_sort_on_a_whole_vocabulary(dtype):
    weights = (torch.randn(3, 50_001, generator=torch.Generator().manual_seed(1), dtype=dtype) * 4).exp()
    weights /= weights.amax(-1, keepdim=True)
    mask = top_p_mask(weights, torch.tensor([[0.5], [0.95], [0.999]], dtype=dtype))
    rounding = 4e-6 if dtype == torch.float32 else 1e-14  # of the mass; float32 sums 50,000 weights to six digits
    for row, p, kept in zip(weights.double(), (0.5, 0.95, 0.999), mask.sum(-1).int().tolist(), strict=True):
        mass = row.sort(descending=True).values.cumsum(0) / row.sum()
        assert mass[kept - 2] < p + rounding
        assert mass[kept - 1] > p - rounding


@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_top_k_equals_a_sort_with_ties(rows, data):
    k = data.draw(st.lists(st.integers(1, 7), min_size=len(rows), max_size=len(rows)))
    mask = top_k_mask(torch.tensor(rows, dtype=torch.float32), k)
    expected = [
        sorted(sorted(range(7), key=lambda i, row=row: (-row[i], i))[:n]) for row, n in zip(rows, k, strict=True)
    ]
    assert [row.nonzero().flatten().tolist() for row in mask] == expected
