"""The sampler against hand-made rows, the processors of transformers, and rows that hold nothing or nonsense."""

import math

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from minfer.core.errors import MinferError
from minfer.core.sampling import INVALID, check_sampled, sampling
from tests.core.sampled import assert_distribution, pick, reached, request, sample_at

torch.set_num_threads(1)
INF, NAN = math.inf, math.nan


# ---- greedy


def test_temperature_zero_is_argmax_and_the_lowest_id_wins_a_tie():
    assert pick([1.0, 3.0, 2.0]) == 1
    assert pick([1.0, 3.0, 3.0]) == 1
    assert pick([3.0, 3.0, 3.0], logit_bias={0: -1.0}) == 1


def test_a_tie_is_not_drawn_for_in_a_greedy_row_beside_drawn_ones():
    edited = [request(seed=s, logit_bias={0: 1.0}) for s in range(20)]
    drawn = [request(seed=s, temperature=1.0) for s in range(20)]
    ids = sampling.sample(torch.tensor([[0.0, 1.0, 1.0]]).expand(40, -1), edited + drawn).tolist()
    assert set(ids[:20]) == {0}
    assert set(ids[20:]) == {0, 1, 2}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_dtype_is_taken_and_ids_are_int64(dtype):
    logits = torch.tensor([[0.0, 9.0, 1.0], [40.0, 0.0, 1.0]], dtype=dtype)
    ids = sampling.sample(logits, [request(), request(temperature=1.0)])
    assert (ids.tolist(), ids.dtype) == ([1, 0], torch.int64)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-320])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_temperature_is_finite_and_greedy(temperature, dtype):
    assert [pick([1.0, 1.5, -4e4, 0.0], dtype=dtype, temperature=temperature, seed=s) for s in range(20)] == [1] * 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_endless_temperature_is_uniform_over_what_is_possible(dtype):
    row = [1e4, -1e4, -INF, 0.0]
    assert {pick(row, dtype=dtype, temperature=1e308, seed=s) for s in range(50)} == {0, 1, 3}


def test_sampling_leaves_the_logits_as_they_were():
    logits = torch.randn(3, 9)
    before = logits.clone()
    edited = {"repetition_penalty": 2.0, "logit_bias": {1: 5.0}, "temperature": 1.0, "top_k": 3, "top_p": 0.5}
    sampling.sample(logits, [request(**edited)] * 3)
    sampling.sample(logits, [request(**edited), request(), request()])
    sampling.sample(logits.requires_grad_(), [request(**edited)] * 3)  # nor does it need a caller's no_grad
    assert torch.equal(logits, before)


# ---- against transformers


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 7},
        {"temperature": 1.3, "top_k": 1},
        {"temperature": 0.9, "top_p": 0.8},
        {"temperature": 0.9, "min_p": 0.1},
        {"temperature": 1.0, "repetition_penalty": 1.7},
        {"temperature": 1.0, "repetition_penalty": 0.6},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.7, "min_p": 0.08, "repetition_penalty": 1.2},
        {"temperature": 2.5, "top_k": 100, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_the_distribution_is_that_of_transformers(monkeypatch, params, seed):
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(1, 60, generator=generator, dtype=torch.float64) * 3
    prompt, output = [3, 3, 17, 40], [5, 17, 5]
    context = torch.tensor([prompt + output])
    scores = row.clone()
    if "repetition_penalty" in params:
        scores = RepetitionPenaltyLogitsProcessor(params["repetition_penalty"])(context, scores)
    scores = TemperatureLogitsWarper(params["temperature"])(context, scores)
    if "top_k" in params:
        scores = TopKLogitsWarper(min(params["top_k"], 60))(context, scores)
    if "top_p" in params:
        scores = TopPLogitsWarper(params["top_p"])(context, scores)
    if "min_p" in params:
        scores = MinPLogitsWarper(params["min_p"])(context, scores)
    assert_distribution(monkeypatch, row[0], scores.softmax(-1)[0], prompt=prompt, output=output, **params)


# ---- penalties, bias, bans


def test_the_repetition_penalty_lowers_seen_tokens_of_either_sign(monkeypatch):
    row = torch.tensor([2.0, -1.0, 1.0, 0.5, -1.0], dtype=torch.float64)
    expected = torch.tensor([1.0, -2.0, 0.5, 0.5, -1.0], dtype=torch.float64).softmax(0)  # 0 and 1 in the prompt, 2 not
    about = {"prompt": [0, 1, 1], "output": [2, 2], "repetition_penalty": 2.0}
    assert_distribution(monkeypatch, row, expected, temperature=1.0, **about)


def test_presence_and_frequency_penalties_count_the_output_only(monkeypatch):
    row = torch.tensor([1.0, 2.0, 3.0, 0.0], dtype=torch.float64)
    expected = (row - torch.tensor([0.0, 0.5 + 0.2, 0.5 + 3 * 0.2, 0.0], dtype=torch.float64)).softmax(0)
    about = {"prompt": [0, 0, 2], "output": [2, 1, 2, 2], "presence_penalty": 0.5, "frequency_penalty": 0.2}
    assert_distribution(monkeypatch, row, expected, temperature=1.0, **about)


def test_penalties_count_for_greedy_too():
    assert pick([3.0, 2.0, 0.0], prompt=[0], repetition_penalty=2.0) == 1
    assert pick([3.0, 2.5, 0.0], prompt=[0], frequency_penalty=1.0) == 0
    assert pick([3.0, 2.5, 0.0], output=[0], frequency_penalty=1.0) == 1
    assert pick([3.0, 2.5, 0.0], output=[0], presence_penalty=-1.0) == 0


def test_logit_bias_is_added_and_joins_with_penalties(monkeypatch):
    row = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    expected = torch.tensor([2.5, 2.0, 2.0], dtype=torch.float64).softmax(0)
    about = {"output": [2], "presence_penalty": 2.0, "logit_bias": {0: 1.5, 2: 1.0}}
    assert_distribution(monkeypatch, row, expected, temperature=1.0, **about)
    assert pick([1.0, 2.0, 3.0], logit_bias={0: 100}) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_end_ids_cannot_be_drawn_before_min_tokens(temperature):
    row, about = [9.0, 8.0, 0.0, 1.0], {"end": (0, 1), "min_tokens": 3, "temperature": temperature, "top_k": 1}
    assert [pick(row, output=[2] * count, **about) for count in range(5)] == [3, 3, 3, 0, 0]
    assert pick(row, output=[2], **about, logit_bias={0: 100.0}) == 3


# ---- rows that hold nothing, or nonsense


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_a_row_in_which_all_is_banned_gives_id_zero(temperature, filters):
    assert pick([-INF] * 4, temperature=temperature, **filters) == 0
    assert pick([1.0, 2.0], temperature=temperature, min_tokens=1, end=(0, 1), **filters) == 0


def test_impossible_tokens_are_never_drawn(monkeypatch):
    assert reached(monkeypatch, [0.0, 0.6, 0.0, 0.4, 0.0]) == {1, 3}
    row = torch.tensor([-INF, 0.0, 0.0, -INF])
    assert sample_at(monkeypatch, row, [0.0, math.nextafter(1, 0)], temperature=1.0) == [1, 2]


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "min_p": 0.1}]
)
def test_nan_and_infinity_are_reported_for_their_row_alone(bad, params):
    logits = torch.tensor([[0.0, 40.0, 1.0], [0.0, bad, 1.0], [40.0, 1.0, 0.0]])
    ids = sampling.sample(logits, [request(**params)] * 3).tolist()
    assert ids == [1, INVALID, 0]
    with pytest.raises(MinferError, match=r"the logits of row 1 hold NaN or infinity: .*dtype float32"):
        check_sampled(ids)
    check_sampled([1, 0])


def test_rows_and_sequences_must_match():
    with pytest.raises(ValueError, match="logits has 2 rows for 3 sequences"):
        sampling.sample(torch.zeros(2, 4), [request()] * 3)
    assert sampling.sample(torch.zeros(0, 4), []).tolist() == []
