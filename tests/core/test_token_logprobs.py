"""Log-probabilities of tokens, against log_softmax and a sort."""

import math
import pickle

import pytest
import torch

from minfer.core.errors import MinferError
from minfer.core.sampling import INVALID, TokenLogprob, token_logprobs

torch.set_num_threads(1)


def test_log_probabilities_are_those_of_the_raw_logits():
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids, k = [3, 29, 0, 7, 7], [0, 1, 5, 30, 99]
    for row, token_id, count, found in zip(
        logits.log_softmax(-1).tolist(), ids, k, token_logprobs(logits, ids, k), strict=True
    ):
        order = sorted(range(30), key=lambda i, row=row: -row[i])
        assert found.token_id == token_id
        assert found.logprob == pytest.approx(row[token_id], abs=1e-12)
        assert found.rank == 1 + order.index(token_id)
        assert [i for i, _ in found.top] == order[:count]
        assert [value for _, value in found.top] == pytest.approx([row[i] for i in order[:count]], abs=1e-12)


def test_equal_tokens_rank_by_id_and_impossible_ones_are_not_listed():
    row = torch.tensor([[0.0, 1.0, 1.0, -math.inf, 1.0]])
    (found,) = token_logprobs(row, [2], [2])
    assert (found.rank, [i for i, _ in found.top]) == (2, [1, 2])
    (found,) = token_logprobs(row, [3], [5])
    assert (found.logprob, found.rank, [i for i, _ in found.top]) == (-math.inf, 5, [1, 2, 4, 0])


def test_log_probabilities_of_low_precision_logits_are_computed_in_float32():
    logits = torch.randn(100, 500, generator=torch.Generator().manual_seed(0)).bfloat16()  # more rows than one part
    found = token_logprobs(logits, list(range(100)), [1] * 100)
    expected = logits.float().log_softmax(-1)[range(100), range(100)]
    assert [one.logprob for one in found] == pytest.approx(expected.tolist(), abs=1e-5)
    assert [one.top[0][0] for one in found] == logits.argmax(-1).tolist()


def test_log_probabilities_without_rows_and_their_pickle():
    assert token_logprobs(torch.zeros(0, 4), [], []) == []
    one = TokenLogprob(1, -0.5, 1, ((1, -0.5),))
    assert pickle.loads(pickle.dumps(one)) == one


def test_the_id_of_a_broken_row_is_an_error_before_the_device_sees_it():
    with pytest.raises(MinferError, match="the logits of row 1 hold NaN or infinity"):
        token_logprobs(torch.zeros(2, 4), [0, INVALID], [1, 1])
