"""Bad sampling parameters, prompts, options, devices and model names: what the user reads.

One row is one thing that goes wrong: what is called, and the beginning of the message.
"""

import math

import numpy as np
import pytest
import torch

from minfer.core.errors import CheckpointError, DeviceError, OptionsError, RequestError, TokenizerError
from minfer.core.sampling import SamplingParams
from tests.badinput.folders import good_folder
from tests.parity.phases import PHASES, engine_class

SAMPLING = {
    "a negative temperature": ({"temperature": -1}, "temperature is -1: it must be a finite number of at least 0"),
    "no number": ({"temperature": math.nan}, "temperature is nan: it must be a finite number of at least 0"),
    "a temperature as text": ({"temperature": "hot"}, "temperature is 'hot': it must be a finite number of at least 0"),
    "no probability": ({"top_p": 0}, "top_p is 0: it must be a finite number above 0 and at most 1"),
    "more than all": ({"top_p": 1.5}, "top_p is 1.5: it must be a finite number above 0 and at most 1"),
    "fewer than none": ({"top_k": -1}, "top_k is -1: it must be a whole number of at least 0"),
    "half a token": ({"top_k": 2.5}, "top_k is 2.5: it must be a whole number of at least 0"),
    "a share above all": ({"min_p": 2}, "min_p is 2: it must be a finite number of at least 0 and at most 1"),
    "a penalty of 0": (
        {"repetition_penalty": 0},
        "repetition_penalty is 0: it must be a finite number of at least 0.01",
    ),
    "a penalty above 2": ({"presence_penalty": 3}, "presence_penalty is 3: it must be a finite number of at least -2"),
    "a negative length": ({"max_tokens": -1}, "max_tokens is -1: it must be a whole number of at least 0, or None"),
    "a length that is true": ({"max_tokens": True}, "max_tokens is True: it must be a whole number of at least 0, or"),
    "more at least than at most": (
        {"max_tokens": 3, "min_tokens": 4},
        "min_tokens is 4, more than max_tokens, which is 3",
    ),
    "no sample": ({"n": 0}, "n is 0: it must be a whole number of at least 1"),
    "a million samples": ({"n": 10**6}, "n is 1000000: it must be a whole number of at least 1 and at most 1024"),
    "a seed as text": ({"seed": "x"}, "seed is 'x': it must be a whole number, or None (a new one)"),
    "an empty stop string": ({"stop": ["a", ""]}, "stop is ['a', '']: an empty string would stop every text"),
    "a stop string that is a number": ({"stop": 5}, "stop is 5: it must be a string or a list of strings"),
    "a negative stop token": (
        {"stop_token_ids": [-1]},
        "a token id in stop_token_ids is -1: it must be a whole number",
    ),
    "stop tokens as text": ({"stop_token_ids": "ab"}, "stop_token_ids is 'ab': it must be a list of token ids"),
    "a bias that is a list": ({"logit_bias": [1]}, "logit_bias is [1]: it must be a mapping from token ids to numbers"),
    "an endless bias": ({"logit_bias": {1: math.inf}}, "logit_bias[1] is inf: it must be a finite number of at least"),
    "a negative number of logprobs": ({"logprobs": -1}, "logprobs is -1: it must be a whole number of at least 0, or"),
    "a flag as text": ({"ignore_eos": "yes"}, "ignore_eos is 'yes': it must be True or False"),
}

NOT = "a prompt is a string, a list of token ids or of chat messages, or a list of prompts, not "
PROMPTS = {
    "a number": (5, RequestError, f"{NOT}int"),
    "nothing": (None, RequestError, f"{NOT}NoneType"),
    "bytes": (b"ab", RequestError, f"{NOT}bytes"),
    "a message outside a list": ({"role": "user", "content": "x"}, RequestError, f"{NOT}dict"),
    "a tensor": (torch.tensor([3]), RequestError, f"{NOT}Tensor: give its .tolist()"),
    "an array": (np.array([3]), RequestError, f"{NOT}ndarray: give its .tolist()"),
    "ids and text": ([3, "a"], RequestError, f"{NOT}a list of int and str"),
    "fractions": ([1.5], RequestError, f"{NOT}a list of float"),
    "a flag": ([True], RequestError, f"{NOT}a list of bool"),
    "too deep": ([[3], [[4]]], RequestError, "prompt 1: a prompt is a string, a list of token ids or of chat messages"),
    "an empty one": (
        [[3], []],
        RequestError,
        "prompt 1: the prompt is empty, and no BOS token was put before it: give",
    ),
    "an empty text": ("", RequestError, "the prompt is empty, and no BOS token was put before it: give at least one"),
    "an id past the vocabulary": ([3, 11], RequestError, "token id 11 is outside the vocabulary (0 … 10)"),
    "a negative id": ([-1], RequestError, "token id -1 is outside the vocabulary (0 … 10)"),
    "a long one": ([[3], [4] * 17], RequestError, "prompt 1: prompt has 17 tokens, the context is 16: shorten it"),
    "a full one": ([4] * 16, RequestError, "prompt has 16 tokens, the context is 16: one token must fit after it"),
    "broken Unicode": ("w\ud800", TokenizerError, "the text is not valid Unicode: character 1 is the lone surrogate"),
    "a chat without a template": (
        [{"role": "user", "content": "x"}],
        TokenizerError,
        "this model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)",
    ),
    "a message without content": ([{"role": "user"}], TokenizerError, "messages[0] has no 'content': its keys are"),
}

PARAMS = {
    "too many": ([SamplingParams()] * 2, "2 sampling parameters for 1 prompts: give one, or one per prompt"),
    "a dict": ({"max_tokens": 3}, "params must be a SamplingParams or a list of them, not dict"),
    "a list of numbers": ([5], "params must be a SamplingParams or a list of them, not a list of int"),
    "a stop token past the vocabulary": (
        SamplingParams(stop_token_ids=[11]),
        "stop_token_ids names token 11: the model's vocabulary has 11 tokens, 0 to 10",
    ),
    "a bias past the vocabulary": (
        SamplingParams(logit_bias={99: 1.0}),
        "logit_bias names token 99: the model's vocabulary has 11 tokens, 0 to 10",
    ),
}

OPTIONS = {
    "an unknown option": (
        {"contxt": 3},
        OptionsError,
        "unknown option 'contxt' (did you mean context?); valid options",
    ),
    "no room for a token": ({"context": 1}, OptionsError, "context = 1: give an integer of at least 2"),
    "a context as text": ({"context": "8"}, OptionsError, "context = '8': give an integer of at least 2"),
    "more than the model has": (
        {"context": 17},
        OptionsError,
        "context = 17: the model has 16 positions: give at most",
    ),
    "an unknown dtype": (
        {"dtype": "int8"},
        DeviceError,
        "dtype 'int8' is unknown: use auto, float64, float32, float16,",
    ),
    "no dtype": ({"dtype": None}, DeviceError, "dtype None is unknown: use auto, float64, float32, float16, bfloat16"),
    "an unknown device": ({"device": "gpu"}, DeviceError, "device 'gpu' is unknown: use auto, cpu, cuda or cuda:N"),
    "no device": ({"device": None}, DeviceError, "device None is unknown: use auto, cpu, cuda or cuda:N"),
    "a device that is not run on": (
        {"device": "mps"},
        DeviceError,
        "device 'mps' is not supported: use auto, cpu, cuda",
    ),
    "a card that is not there": ({"device": "cuda:77"}, DeviceError, "device 'cuda:77' is not there: torch sees "),
}

MODELS = {
    "an unknown name": ("nowhere", "no model 'nowhere': it is neither a folder nor a name known here"),
    "a folder that is not there": ("/no/such/folder", "no model '/no/such/folder': it is neither a folder nor a name"),
    "an unknown shape": ("random:llama9", "no shape 'llama9' for random:<shape> (did you mean "),
    "nothing": (None, "a model is a name or a folder, not None"),
    "an empty name": ("", "no model '': it is neither a folder nor a name known here"),
}


def told(error, call) -> str:
    """The one line that `call` fails with."""
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return good_folder(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module", params=PHASES)
def engine(request, folder):
    return engine_class(request.param).load(folder, device="cpu")


@pytest.mark.parametrize("name", SAMPLING)
def test_a_bad_parameter_is_refused_where_it_is_made(name):
    values, message = SAMPLING[name]
    assert told(RequestError, lambda: SamplingParams(**values)).startswith(message)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_bad_prompt_is_refused_by_every_phase(engine, name):
    prompt, error, message = PROMPTS[name]
    assert told(error, lambda: engine.generate(prompt)).startswith(message)


@pytest.mark.parametrize("name", PARAMS)
def test_bad_parameters_of_a_request_are_refused_by_every_phase(engine, name):
    params, message = PARAMS[name]
    assert told(RequestError, lambda: engine.generate([3], params)).startswith(message)


def test_a_stream_is_of_one_prompt_and_one_sample(engine):
    message = told(RequestError, lambda: engine.stream([3], SamplingParams(n=2)))
    assert message == "a stream shows one sample, not n = 2: use generate, or stream n times"
    message = told(RequestError, lambda: engine.stream(["a", "b"]))
    assert message == "a prompt is a string, a list of token ids or of chat messages, not a list of str"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_option_is_refused_by_every_phase(folder, name, phase):
    options, error, message = OPTIONS[name]
    call = engine_class(phase).load
    assert told(error, lambda: call(folder, **{"device": "cpu", **options})).startswith(message)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_not_there_is_refused_with_what_there_is(name):
    model, message = MODELS[name]
    assert told(CheckpointError, lambda: engine_class(PHASES[0]).load(model)).startswith(message)
