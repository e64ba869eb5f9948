"""The wire: what OpenAI's own client and a plain socket see, against the same engine asked directly."""

import json
import socket

import pytest

from minfer.core.params import SamplingParams
from minfer.core.tokenizer.byte_tokenizer import ByteTokenizer
from minfer.phase5 import Engine
from tests.serve.serving import NAME, engine_of, read_all, serving


@pytest.fixture(scope="session")
def oracle(module, tokenizer):
    """The same model, asked without a server."""
    return engine_of(module, tokenizer, Engine)


def alone(oracle, prompt, **params):
    (completion,) = oracle.generate([prompt], SamplingParams(**params))
    return completion


# ---- whole answers ---------------------------------------------------------------------------------------------------


def test_a_completion_is_what_the_engine_says(client, oracle):
    answer = client.completions.create(model=NAME, prompt="hello", max_tokens=12, temperature=0)
    want = alone(oracle, "hello", max_tokens=12)
    assert answer.choices[0].text == want.text
    assert answer.choices[0].finish_reason == str(want.finish_reason)
    assert answer.object == "text_completion"
    assert answer.usage.prompt_tokens == len(want.prompt_ids)
    assert answer.usage.completion_tokens == len(want.token_ids)
    assert answer.usage.total_tokens == len(want.prompt_ids) + len(want.token_ids)


def test_a_chat_goes_through_the_template(client, oracle):
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = client.chat.completions.create(model=NAME, messages=messages, max_completion_tokens=9, temperature=0)
    system = [{"role": "system", "content": "be brief"}, messages[1]]
    want = alone(oracle, system, max_tokens=9)
    assert answer.choices[0].message.content == want.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.prompt_tokens == len(want.prompt_ids)


def test_a_message_may_come_in_parts(client):
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    said = [
        client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": content}], max_tokens=6, temperature=0
        )
        for content in ("hello", parts)
    ]
    assert said[0].choices[0].message.content == said[1].choices[0].message.content


def test_several_prompts_in_all_their_forms(client, oracle, tokenizer):
    texts = ["one", "two more"]
    want = [alone(oracle, text, max_tokens=5).text for text in texts]
    ids = [tokenizer.encode(text) for text in texts]
    for prompt in (texts, ids):
        answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=5, temperature=0)
        assert [choice.text for choice in answer.choices] == want
        assert [choice.index for choice in answer.choices] == [0, 1]
    alone_by_ids = client.completions.create(model=NAME, prompt=ids[0], max_tokens=5, temperature=0)
    assert alone_by_ids.choices[0].text == want[0]


def test_samples_are_those_of_the_seed(client, oracle):
    asked = {"max_tokens": 8, "temperature": 0.9, "seed": 5, "n": 3}
    answer = client.completions.create(model=NAME, prompt=["ab", "cd"], **asked)
    want = [one.text for one in oracle.generate(["ab", "cd"], SamplingParams(**asked))]
    assert [choice.text for choice in answer.choices] == want
    assert len(set(want)) > 2
    one = oracle.generate(["ab"], SamplingParams(**{**asked, "n": 1}))[0]
    assert answer.usage.prompt_tokens == 2 * len(one.prompt_ids), "a prompt counts once, whatever n is"


def test_every_sampling_parameter_reaches_the_engine(client, oracle):
    asked = {
        "max_tokens": 9,
        "temperature": 0.8,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "seed": 3,
        "stop": ["zz"],
    }
    extra = {
        "top_k": 9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "min_tokens": 4,
        "ignore_eos": True,
        "stop_token_ids": [7],
    }
    bias = {"5": 1.5, "9": -2}
    answer = client.completions.create(model=NAME, prompt="abc", logit_bias=bias, extra_body=extra, **asked)
    want = alone(oracle, "abc", logit_bias={5: 1.5, 9: -2.0}, **asked, **extra)
    assert answer.choices[0].text == want.text
    assert answer.usage.completion_tokens == len(want.token_ids)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"5": 100}),
        ("min_tokens", 6),
        ("presence_penalty", 2),
        ("frequency_penalty", 2),
        ("repetition_penalty", 50),
        ("top_k", 1),
        ("top_p", 0.01),
        ("min_p", 1),
        ("seed", 8),
        ("temperature", 0),
        ("stop", "o"),
        ("ignore_eos", True),
        ("stop_token_ids", list(range(4, 30))),
        ("max_tokens", 3),
    ],
)
def test_no_sampling_parameter_is_dropped(server, field, value):
    """Each by itself changes an answer that is long enough to show it; else it would pass unnoticed if it was lost."""
    fixed = {"prompt": "abca", "max_tokens": 24, "temperature": 1, "seed": 7}
    if field == "min_tokens":
        fixed["stop_token_ids"] = list(range(30))
    base = server.complete(**fixed)
    assert server.complete(**fixed) == base
    assert server.complete(**{**fixed, field: value}) != base


def test_without_a_temperature_it_is_1_and_a_completion_has_16_tokens(server):
    status, _, answer = server.post("/v1/completions", prompt="a", seed=1, ignore_eos=True)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 16)
    same = server.complete("a", seed=1, temperature=1.0, max_tokens=16, ignore_eos=True)
    assert answer["choices"][0]["text"] == same["text"] != server.complete("a", max_tokens=16, ignore_eos=True)["text"]


def test_null_is_as_if_it_was_not_there(server):
    nulls = dict.fromkeys(
        (
            "max_tokens",
            "n",
            "stop",
            "seed",
            "logprobs",
            "echo",
            "logit_bias",
            "stream",
            "stream_options",
            "top_p",
            "user",
        )
    )
    assert server.complete("abc", **nulls) == server.complete("abc")


def test_a_field_that_nobody_knows_is_ignored(server):
    assert server.complete("abc", metadata={"a": 1}, store=True, frobnicate=[1]) == server.complete("abc")


def test_echo_and_no_tokens_score_the_prompt(client, oracle):
    answer = client.completions.create(model=NAME, prompt="abc de", max_tokens=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    want = alone(oracle, "abc de", max_tokens=0, prompt_logprobs=2)
    assert choice.text == "abc de"
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx([one.logprob for one in want.prompt_logprobs[1:]])
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0


def test_log_probabilities_of_a_completion(client, oracle):
    answer = client.completions.create(model=NAME, prompt="abc", max_tokens=6, temperature=0, logprobs=3, echo=True)
    found, want = answer.choices[0].logprobs, alone(oracle, "abc", max_tokens=6, logprobs=3, prompt_logprobs=3)
    drawn = found.token_logprobs[len(want.prompt_ids) :]
    assert drawn == pytest.approx([one.logprob for one in want.logprobs])
    text = answer.choices[0].text
    for token, offset in list(zip(found.tokens, found.text_offset, strict=True))[1:]:
        assert text[offset:].startswith(token.lstrip() if offset == 0 else token)
    for own, top, token in zip(found.token_logprobs[1:], found.top_logprobs[1:], found.tokens[1:], strict=True):
        assert 3 <= len(top) <= 4
        assert top[token] == own


def test_log_probabilities_of_a_chat(client, oracle):
    messages = [{"role": "user", "content": "hi"}]
    asked = {"max_tokens": 5, "temperature": 0, "logprobs": True, "extra_body": {"ignore_eos": True}}
    answer = client.chat.completions.create(model=NAME, messages=messages, top_logprobs=2, **asked)
    want = alone(oracle, messages, logprobs=2, max_tokens=5, ignore_eos=True)
    content = answer.choices[0].logprobs.content
    assert [one.logprob for one in content] == pytest.approx([one.logprob for one in want.logprobs])
    for one, own in zip(content, want.logprobs, strict=True):
        assert [top.logprob for top in one.top_logprobs] == pytest.approx([value for _, value in own.top])
    assert b"".join(bytes(one.bytes) for one in content).decode() == "".join(one.token for one in content)
    plain = client.chat.completions.create(model=NAME, messages=messages, **asked)
    assert [one.top_logprobs for one in plain.choices[0].logprobs.content] == [[]] * 5


def test_a_prefix_that_was_there_already_is_counted(module, tokenizer):
    with serving(engine_of(module, tokenizer)) as own:
        said = [own.post("/v1/completions", prompt="a long beginning " * 3, max_tokens=1)[2] for _ in range(2)]
        counted = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in said]
    prompt = said[0]["usage"]["prompt_tokens"]
    assert counted == [0, (prompt - 1) // 4 * 4]


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_joins_to_the_whole(client, oracle):
    want = alone(oracle, "abc", max_tokens=14, ignore_eos=True)
    asked = {"max_tokens": 14, "temperature": 0, "stream": True, "extra_body": {"ignore_eos": True}}
    pieces = list(client.completions.create(model=NAME, prompt="abc", **asked))
    assert "".join(piece.choices[0].text for piece in pieces) == want.text
    assert len(pieces) == len(want.token_ids), "one chunk a token"
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len({piece.id for piece in pieces}) == 1


def test_the_role_comes_with_the_first_token_and_the_usage_last(client):
    stream = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    *chunks, last = list(stream)
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None, None]
    assert all(chunk.choices[0].delta.content is not None and chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage.completion_tokens) == ([], 4)


def test_the_bytes_of_a_stream(server):
    events = server.stream(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "x"}],
        max_tokens=2,
        temperature=0,
        ignore_eos=True,
    )
    *chunks, done = events
    assert done == "[DONE]"
    head = {key: chunks[0][key] for key in ("id", "created", "model", "system_fingerprint")}
    assert head["id"].startswith("chatcmpl-")
    assert all(isinstance(chunk["choices"][0]["delta"].pop("content"), str) for chunk in chunks)
    assert chunks == [
        {
            **head,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
        }
        for delta, reason in (({"role": "assistant"}, None), ({}, "length"))
    ]


def test_samples_of_several_prompts_in_one_stream(server):
    asked = {"prompt": ["ab", "cd"], "n": 2, "seed": 4, "temperature": 1, "max_tokens": 6, "logprobs": 1, "echo": True}
    _, _, whole = server.post("/v1/completions", **asked)
    *chunks, _ = server.stream("/v1/completions", **asked)
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        for column, values in choice["logprobs"].items():
            assert [value for piece in own for value in piece["logprobs"][column]] == values
        assert own[-1]["finish_reason"] == choice["finish_reason"]


def test_a_stop_string_never_shows_half_and_every_token_has_its_chunk(server):
    text = server.complete("abc", max_tokens=20, ignore_eos=True)["text"]
    stop = text[9:12]
    assert text.index(stop) == 9
    *chunks, _ = server.stream(
        "/v1/completions", prompt="abc", max_tokens=20, temperature=0, stop=[stop], ignore_eos=True
    )
    pieces = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(pieces) == text[:9]
    assert pieces[-1] == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert server.complete("abc", max_tokens=20, stop=stop, ignore_eos=True)["stop_reason"] == stop


# ---- characters of several bytes -------------------------------------------------------------------------------------


SAID = "é 漢字 🙂!"


@pytest.fixture(scope="module")
def foreign(lab_module):
    with serving(engine_of(*lab_module)) as made:
        yield made


@pytest.fixture(scope="module")
def lab_module(tmp_path_factory):
    """A model that says the bytes of `SAID`, one token each, after a prompt of 3."""
    from minfer.course.lab.lab import Lab

    lab = Lab(0, lambda: tmp_path_factory.mktemp("lab"))
    return lab.scripted(3, list(SAID.encode()), vocab_size=300), ByteTokenizer(300)


def test_a_character_of_several_tokens_comes_whole(foreign):
    count = len(SAID.encode())
    assert foreign.complete("abc", max_tokens=count)["text"] == SAID
    *chunks, _ = foreign.stream("/v1/completions", prompt="abc", max_tokens=count, temperature=0)
    pieces = [chunk["choices"][0]["text"] for chunk in chunks]
    assert len(pieces) == count, "one chunk a token, also where a token is no whole character"
    assert "".join(pieces) == SAID
    assert "\ufffd" not in "".join(pieces)
    foreign.all_free()


def test_half_a_character_is_told_as_bytes_in_log_probabilities(foreign):
    found = foreign.complete("abc", max_tokens=2, logprobs=0)["logprobs"]
    assert found["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert found["text_offset"] == [0, 0]


def test_text_is_sent_as_utf_8_and_read_as_such(foreign):
    body = json.dumps({"model": NAME, "prompt": "é!", "max_tokens": 3, "echo": True}, ensure_ascii=False).encode()
    status, _, answer = foreign.ask("POST", "/v1/completions", body)
    assert (status, answer["choices"][0]["text"][:2]) == (200, "é!")


# ---- the rest of the interface ---------------------------------------------------------------------------------------


def test_models(client, server):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.root) == (NAME, "model", "nowhere")
    assert model.max_model_len == 1024
    assert client.models.retrieve(NAME).id == NAME
    assert server.ask("GET", "/v1/models/other")[0] == 404


def test_tokens_and_back(server, tokenizer):
    status, _, found = server.post("/tokenize", prompt="abc de")
    assert (status, found["tokens"], found["count"]) == (200, tokenizer.encode("abc de"), len(found["tokens"]))
    assert server.post("/detokenize", tokens=found["tokens"])[2] == {"prompt": "abc de"}
    chat = [{"role": "user", "content": "hi"}]
    assert server.post("/tokenize", messages=chat)[2]["tokens"] == tokenizer.apply_chat_template(chat)
    bare = server.post("/tokenize", prompt="abc", add_special_tokens=False)[2]["tokens"]
    assert bare == tokenizer.encode("abc", add_special_tokens=False)


def test_a_request_id_is_given_back_and_made_where_there_is_none(server):
    assert server.ask("GET", "/health", headers={"x-request-id": "mine-1"})[1]["x-request-id"] == "mine-1"
    made = {server.ask("GET", "/health")[1]["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert server.ask("GET", "/health", headers={"x-request-id": "a b"})[1]["x-request-id"] != "a b"


def test_no_token_waits_for_the_one_before_to_be_acknowledged(server):
    """Nagle's algorithm is off: with it, each small write of a stream may wait 40 ms for the client's delayed ACK."""
    with server.send_raw(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        accepted = next(iter(server.server.server_state.connections)).transport
        assert accepted.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_one_connection_serves_several_requests(server):
    get = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    with server.send_raw(get + get + b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n") as connection:
        assert read_all(connection).count(b"HTTP/1.1 200") == 3
