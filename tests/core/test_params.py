"""SamplingParams: what is refused, with which message, and what is normalised."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, fields, replace

import numpy as np
import pytest

from minfer.core.errors import RequestError
from minfer.core.params import SamplingParams

INF, NAN = float("inf"), float("nan")

BAD = [
    ({"max_tokens": -1}, "max_tokens is -1: it must be a whole number of at least 0, or None (no limit)"),
    ({"max_tokens": 1.5}, "max_tokens is 1.5: it must be a whole number"),
    ({"max_tokens": True}, "max_tokens is True: it must be a whole number"),
    ({"max_tokens": "10"}, "max_tokens is '10': it must be a whole number"),
    ({"max_tokens": np.float32(3)}, "max_tokens is np.float32(3.0): it must be a whole number"),
    ({"min_tokens": -2}, "min_tokens is -2: it must be a whole number of at least 0"),
    ({"min_tokens": None}, "min_tokens is None: it must be a whole number"),
    ({"min_tokens": 4, "max_tokens": 3}, "min_tokens is 4, more than max_tokens, which is 3"),
    ({"temperature": -0.1}, "temperature is -0.1: it must be a finite number of at least 0"),
    ({"temperature": INF}, "temperature is inf: it must be a finite number"),
    ({"temperature": NAN}, "temperature is nan: it must be a finite number"),
    ({"temperature": "hot"}, "temperature is 'hot': it must be a finite number"),
    ({"temperature": None}, "temperature is None: it must be a finite number"),
    ({"temperature": False}, "temperature is False: it must be a finite number"),
    ({"temperature": 10**400}, "temperature is 1000"),
    ({"temperature": 1j}, "temperature is 1j: it must be a finite number"),
    ({"top_k": -1}, "top_k is -1: it must be a whole number of at least 0"),
    ({"top_k": 3.0}, "top_k is 3.0: it must be a whole number"),
    ({"top_p": 0}, "top_p is 0: it must be a finite number above 0 and at most 1"),
    ({"top_p": 1.0001}, "top_p is 1.0001: it must be a finite number above 0 and at most 1"),
    ({"top_p": NAN}, "top_p is nan: it must be"),
    ({"min_p": -0.01}, "min_p is -0.01: it must be a finite number of at least 0 and at most 1"),
    ({"min_p": 1.5}, "min_p is 1.5: it must be"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0: it must be a finite number of at least 0.01 and at most 100"),
    ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0: it must be"),
    ({"repetition_penalty": INF}, "repetition_penalty is inf: it must be"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5: it must be a finite number of at least -2 and at most 2"),
    ({"frequency_penalty": -3}, "frequency_penalty is -3: it must be a finite number of at least -2 and at most 2"),
    ({"frequency_penalty": np.float64(NAN)}, "frequency_penalty is np.float64(nan): it must be"),
    ({"logit_bias": [(3, 1.0)]}, "logit_bias is [(3, 1.0)]: it must be a mapping"),
    ({"logit_bias": {"3": 1.0}}, "a token id in logit_bias is '3': it must be a whole number of at least 0"),
    ({"logit_bias": {-1: 1.0}}, "a token id in logit_bias is -1: it must be"),
    ({"logit_bias": {3: INF}}, "logit_bias[3] is inf: it must be a finite number"),
    ({"logit_bias": {3: "much"}}, "logit_bias[3] is 'much': it must be a finite number"),
    ({"seed": 1.0}, "seed is 1.0: it must be a whole number, or None (a new one)"),
    ({"seed": True}, "seed is True: it must be a whole number"),
    ({"stop": ""}, "stop is '': an empty string would stop every text at its start"),
    ({"stop": ["a", ""]}, "stop is ['a', '']: an empty string would"),
    ({"stop": ["a", 3]}, "stop is ['a', 3]: it must be a string or a list of strings"),
    ({"stop": None}, "stop is None: it must be a string or a list of strings"),
    ({"stop": b"end"}, "stop is b'end': it must be a string or a list of strings"),
    ({"stop_token_ids": 5}, "stop_token_ids is 5: it must be a list of token ids"),
    ({"stop_token_ids": "12"}, "stop_token_ids is '12': it must be a list of token ids"),
    ({"stop_token_ids": [-7]}, "a token id in stop_token_ids is -7: it must be"),
    ({"stop_token_ids": [1.5]}, "a token id in stop_token_ids is 1.5: it must be"),
    ({"ignore_eos": "no"}, "ignore_eos is 'no': it must be True or False"),
    ({"ignore_eos": 1}, "ignore_eos is 1: it must be True or False"),
    ({"n": 0}, "n is 0: it must be a whole number of at least 1"),
    ({"n": "two"}, "n is 'two': it must be a whole number"),
    ({"logprobs": -1}, "logprobs is -1: it must be a whole number of at least 0, or None (no report)"),
    ({"logprobs": True}, "logprobs is True: it must be a whole number"),
    ({"prompt_logprobs": -1}, "prompt_logprobs is -1: it must be"),
    ({"prompt_logprobs": 0.5}, "prompt_logprobs is 0.5: it must be"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message.partition(":")[0][:40] for _, message in BAD])
def test_a_bad_value_is_refused_when_the_params_are_made(arguments, message):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**arguments)
    assert str(caught.value).startswith(message)


def test_an_unknown_parameter_is_a_type_error():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)


EDGES = [
    {"max_tokens": 0},
    {"max_tokens": None, "min_tokens": 5},
    {"max_tokens": 3, "min_tokens": 3},
    {"temperature": 1e-320},
    {"temperature": 1e308},
    {"top_k": 10**12},
    {"top_p": 1e-9},
    {"top_p": 1},
    {"min_p": 0},
    {"min_p": 1},
    {"repetition_penalty": 0.01},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"seed": -1},
    {"seed": 2**64},
    {"logprobs": 0, "prompt_logprobs": 0},
    {"stop": ()},
]


@pytest.mark.parametrize("arguments", EDGES, ids=str)
def test_the_edges_of_each_range_are_allowed(arguments):
    params = SamplingParams(**arguments)
    assert {name: getattr(params, name) for name in arguments} == arguments


def test_numpy_scalars_and_whole_floats_become_plain_python_numbers():
    params = SamplingParams(
        max_tokens=np.int64(7),
        temperature=np.float32(0.5),
        top_p=1,
        logit_bias={np.int32(3): np.float64(-1)},
        seed=np.uint8(9),
        stop_token_ids=np.array([4, 5]),
        ignore_eos=np.bool_(True),
    )
    expected = (7, 0.5, 1.0, {3: -1.0}, 9, (4, 5), True)
    found = (
        params.max_tokens,
        params.temperature,
        params.top_p,
        params.logit_bias,
        params.seed,
        params.stop_token_ids,
        params.ignore_eos,
    )
    assert found == expected
    kinds = [int, float, float, dict, int, tuple, bool]
    assert [type(value) for value in found] == kinds
    assert [type(value) for value in (*params.logit_bias, *params.logit_bias.values())] == [int, float]
    assert {type(token_id) for token_id in params.stop_token_ids} == {int}


def test_one_stop_string_and_a_list_of_them_become_a_tuple():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_the_callers_lists_and_dicts_are_copied():
    bias, stop, ids = {1: 2.0}, ["x"], [3]
    params = SamplingParams(logit_bias=bias, stop=stop, stop_token_ids=ids)
    bias[1], stop[0], ids[0] = 9.0, "y", 8
    assert (params.logit_bias, params.stop, params.stop_token_ids) == ({1: 2.0}, ("x",), (3,))


def test_params_are_frozen_hashable_copied_and_pickled():
    params = SamplingParams(temperature=0.5, logit_bias={1: 2.0}, stop="x")
    with pytest.raises(FrozenInstanceError):
        params.temperature = 1.0
    assert len({params, SamplingParams(temperature=0.5, logit_bias={1: 2.0}, stop="x")}) == 1
    assert params != replace(params, logit_bias={1: 3.0})
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == SamplingParams(**asdict(params)) == params


def test_replace_checks_again():
    params = SamplingParams(max_tokens=10, min_tokens=5)
    assert replace(params, max_tokens=6).max_tokens == 6
    with pytest.raises(RequestError, match="min_tokens is 5, more than max_tokens, which is 4"):
        replace(params, max_tokens=4)


def test_only_temperature_zero_is_greedy():
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=1e-9).is_greedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"logit_bias": {99: 1.0, 100: 1.0}},
            "logit_bias names token 100: the model's vocabulary has 100 tokens, 0 to 99",
        ),
        ({"stop_token_ids": [5, 100]}, "stop_token_ids names token 100: the model's vocabulary has 100 tokens"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_when_the_request_is_made(arguments, message):
    params = SamplingParams(**arguments)
    params.check(vocab_size=101)
    with pytest.raises(RequestError) as caught:
        params.check(vocab_size=100)
    assert str(caught.value).startswith(message)


def test_every_field_has_help_for_the_command_line():
    assert [item.name for item in fields(SamplingParams) if not item.metadata.get("help")] == []
