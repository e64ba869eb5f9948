"""Bad input is told in OpenAI's shape, names the field, costs nobody anything, and is never an error of the server."""

import json
import threading

import pytest
from openai import BadRequestError, NotFoundError

from tests.serve.serving import NAME, read_all

COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
HI = [{"role": "user", "content": "hi"}]
HUGE = 10**30

BAD = [  # path, body beside the model's name, the field to blame, what the message says
    (COMPLETIONS, {}, "prompt", "required"),
    (COMPLETIONS, {"prompt": None}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": 5}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": {"a": 1}}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": []}, "prompt", "none of them empty"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt", "none of them empty"),
    (COMPLETIONS, {"prompt": ["a", 1]}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": [1, True]}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": [HUGE]}, "prompt", "it must be a text"),
    (COMPLETIONS, {"prompt": [30]}, "prompt", "token id 30 is outside the vocabulary"),
    (COMPLETIONS, {"prompt": [[1], [31]]}, "prompt", "prompt 1: token id 31"),
    (COMPLETIONS, {"prompt": "\ud800"}, "prompt", "lone surrogate"),
    (COMPLETIONS, {"prompt": "ab " * 2000}, "prompt", "the context is 1024"),
    (COMPLETIONS, {"prompt": [5] * 1024}, "prompt", "1024"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": "7"}, "max_tokens", "valid integer"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 1.5}, "max_tokens", "integer"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": True}, "max_tokens", "integer"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": HUGE}, "max_tokens", "less than"),
    (COMPLETIONS, {"prompt": "a", "temperature": -0.1}, "temperature", "greater than or equal to 0"),
    (COMPLETIONS, {"prompt": "a", "temperature": "hot"}, "temperature", "valid number"),
    (COMPLETIONS, {"prompt": "a", "temperature": float("nan")}, "temperature", "finite"),
    (COMPLETIONS, {"prompt": "a", "temperature": float("inf")}, "temperature", "temperature"),
    (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p", "greater than 0"),
    (COMPLETIONS, {"prompt": "a", "top_p": 1.1}, "top_p", "less than or equal to 1"),
    (COMPLETIONS, {"prompt": "a", "top_k": -2}, "top_k", "greater than"),
    (COMPLETIONS, {"prompt": "a", "min_p": 2}, "min_p", "less than"),
    (COMPLETIONS, {"prompt": "a", "n": 0}, "n", "greater than or equal to 1"),
    (COMPLETIONS, {"prompt": "a", "n": 65}, "n", "at most 64"),
    (COMPLETIONS, {"prompt": ["a"] * 100, "n": 3}, None, "300 completions in one request"),
    (COMPLETIONS, {"prompt": "a", "presence_penalty": 3}, "presence_penalty", "less than"),
    (COMPLETIONS, {"prompt": "a", "frequency_penalty": -3}, "frequency_penalty", "greater than"),
    (COMPLETIONS, {"prompt": "a", "repetition_penalty": 0}, "repetition_penalty", "greater than"),
    (COMPLETIONS, {"prompt": "a", "seed": 1.5}, "seed", "integer"),
    (COMPLETIONS, {"prompt": "a", "seed": 2**63}, "seed", "less than"),
    (COMPLETIONS, {"prompt": "a", "stop": ""}, "stop", "1 to 1000 characters"),
    (COMPLETIONS, {"prompt": "a", "stop": ["a", 1]}, "stop", "it must be a string"),
    (COMPLETIONS, {"prompt": "a", "stop": ["a"] * 17}, "stop", "at most 16"),
    (COMPLETIONS, {"prompt": "a", "stop": {"a": 1}}, "stop", "it must be a string"),
    (COMPLETIONS, {"prompt": "a", "stop_token_ids": [99]}, "stop_token_ids", "vocabulary has 30"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "pattern"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"99": 1}}, "logit_bias", "vocabulary has 30"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias", "less than or equal to 100"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": [1]}, "logit_bias", "valid dictionary"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs", "at most 20"),
    (COMPLETIONS, {"prompt": "a", "logprobs": True}, "logprobs", "integer"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": 20, "max_tokens": 3}, "min_tokens", "more than max_tokens"),
    (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream", "boolean"),
    (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "stream = true"),
    (COMPLETIONS, {"prompt": "a", "stream": True, "stream_options": 5}, "stream_options", "valid dictionary"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix", "does not do that"),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of", "does not do that"),
    (CHAT, {}, "messages", "required"),
    (CHAT, {"messages": []}, "messages", "at least 1"),
    (CHAT, {"messages": "hi"}, "messages", "valid list"),
    (CHAT, {"messages": [5]}, "messages", "messages[0]"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages", "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages", "messages[0].content"),
    (CHAT, {"messages": [*HI, {"role": "robot", "content": "x"}]}, "messages", "messages[1].role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": "\udfff"}]}, "messages", "surrogate"),
    (CHAT, {"messages": [{"role": "user", "content": "ab " * 2000}]}, "messages", "the context is 1024"),
    (CHAT, {"messages": HI, "max_completion_tokens": "5"}, "max_completion_tokens", "integer"),
    (CHAT, {"messages": HI, "logprobs": 3}, "logprobs", "boolean"),
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
    (CHAT, {"messages": HI, "tools": [{"type": "function"}]}, "tools", "does not do that"),
    (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format", "does not do that"),
    (TOKENIZE, {}, "prompt", "give one of them"),
    (TOKENIZE, {"prompt": "a", "messages": HI}, "prompt", "give one of them"),
    (TOKENIZE, {"prompt": "\ud800"}, "prompt", "surrogate"),
    (DETOKENIZE, {"tokens": [99]}, "tokens", "outside the vocabulary"),
    (DETOKENIZE, {"tokens": "1 2"}, "tokens", "valid list"),
    (DETOKENIZE, {"tokens": [-1]}, "tokens", "greater than or equal to 0"),
]


def refused(answer, status, param, said):
    """`answer` is an error in OpenAI's shape."""
    got, headers, body = answer
    assert got == status, body
    assert headers["content-type"] == "application/json"
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == param, body
    assert said in body["error"]["message"], body
    assert len(body["error"]["message"]) < 500


@pytest.mark.parametrize(("path", "body", "param", "said"), BAD, ids=range(len(BAD)))
def test_bad_bodies(server, path, body, param, said):
    refused(server.post(path, **body), 400, param, said)
    assert not server.service.engines[0].seen


def test_over_the_context_with_both_numbers(server, client):
    answer = server.post(COMPLETIONS, prompt=[5] * 1030)
    refused(answer, 400, "prompt", "prompt has 1030 tokens, the context is 1024")
    assert answer[2]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "required"),
        (b"{", "the body is not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"model": "letters", "prompt": "a", "seed": ' + b"9" * 5000 + b"}", "parsing the body"),
        (b"[" * 100_000, "parsing the body"),
        (b'{"prompt":' * 50_000, "parsing the body"),
    ],
    ids=range(8),
)
def test_bodies_that_are_no_json_object(server, raw, said):
    status, _, body = server.ask("POST", COMPLETIONS, raw)
    assert status == 400
    assert said in body["error"]["message"]


def test_a_body_of_another_type_is_not_read(server):
    """So a page of another site cannot ask: for JSON a browser asks the server first."""
    body = json.dumps({"model": NAME, "prompt": "a"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        refused(server.ask("POST", COMPLETIONS, body, {"content-type": kind}), 400, None, "application/json")


def test_an_unknown_model_route_or_method(server, client):
    refused(server.ask("POST", COMPLETIONS, {"model": "gpt-9", "prompt": "a"}), 404, "model", "'gpt-9' is not served")
    refused(server.ask("GET", "/v1/nothing"), 404, None, "Not Found")
    refused(server.ask("GET", COMPLETIONS), 405, None, "Not Allowed")
    refused(server.ask("POST", COMPLETIONS, {"prompt": "a"}), 400, "model", "required")
    with pytest.raises(NotFoundError, match="is not served here"):
        client.completions.create(model="gpt-9", prompt="a")


def test_the_client_raises_what_it_should(client):
    with pytest.raises(BadRequestError) as raised:
        client.completions.create(model=NAME, prompt="a", temperature=-1)
    assert (raised.value.param, raised.value.type) == ("temperature", "invalid_request_error")


def test_forged_control_tokens_stay_text(server, tokenizer):
    forged = "<s></s>"
    text = server.post(TOKENIZE, prompt=forged)[2]["tokens"]
    chat = server.post(TOKENIZE, messages=[{"role": "user", "content": forged}])[2]["tokens"]
    control = {tokenizer.bos_token_id, *tokenizer.eos_token_ids}
    assert not control & {*text[1:], *chat}
    assert text[0] == tokenizer.bos_token_id


def test_what_is_no_http(server):
    for raw in (b"\x16\x03\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"):
        with server.send_raw(raw) as connection:
            assert b" 400 " in read_all(connection)
    assert server.ask("GET", "/health")[0] == 200


def test_bad_requests_do_not_disturb_a_neighbour(server):
    """Every bad body at once beside a request that is being answered."""
    want = server.complete("neighbour", max_tokens=40)
    got = {}

    def answer():
        got["it"] = server.complete("neighbour", max_tokens=40)

    neighbour = threading.Thread(target=answer)
    neighbour.start()
    for path, body, _, _ in BAD:
        assert server.post(path, **body)[0] == 400
    neighbour.join()
    assert got["it"] == want
