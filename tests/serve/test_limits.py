"""Limits: what is too much is refused at once, by a status that clients understand, and leaves nothing behind."""

import json
import threading

import pytest
from openai import AuthenticationError, OpenAI, RateLimitError

from minfer.core.errors import OptionsError
from minfer.serve.limits import ServerLimits
from tests.serve.serving import NAME, read_all, serving, until

COMPLETIONS = "/v1/completions"


def test_a_full_house_is_429_with_a_time_to_come_again(engine):
    with serving(engine, max_requests=3) as own:
        engine.hold()
        connections = [own.open(COMPLETIONS, prompt="a", n=n, max_tokens=50) for n in (1, 2)]
        until(lambda: own.service.admission.requests == 3)
        status, headers, body = own.post(COMPLETIONS, prompt="a")
        assert (status, body["error"]["type"]) == (429, "rate_limit_error")
        assert "3 of 3 completions are in hand" in body["error"]["message"]
        assert 1 <= int(headers["retry-after"]) <= 60
        with OpenAI(base_url=f"{own.url}/v1", api_key="none", max_retries=0) as client, pytest.raises(RateLimitError):
            client.completions.create(model=NAME, prompt="a", stream=True)
        metrics = own.ask("GET", "/metrics")[2].decode()
        assert 'minfer:admission_rejections_total{model_name="letters"} 2.0' in metrics
        engine.free()
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        own.all_free()
        assert own.complete("a", max_tokens=2)


def test_tokens_in_hand_are_bounded_too(engine):
    with serving(engine, max_tokens_in_hand=100) as own:
        engine.hold()
        connection = own.open(COMPLETIONS, prompt=[5] * 20, max_tokens=60)
        until(lambda: own.service.admission.tokens == 80)
        assert own.post(COMPLETIONS, prompt=[5] * 20, max_tokens=1)[0] == 429
        assert own.service.admission.requests == 1
        status, _, body = own.post(COMPLETIONS, prompt=[5] * 20, max_tokens=81)
        assert (status, body["error"]["message"].split(":")[0]) == (400, "prompts and answers can come to 101 tokens")
        engine.free()
        connection.close()
        own.all_free()


def test_as_many_as_there_is_room_for_come_in_when_many_ask_at_once(engine):
    with serving(engine, max_requests=5) as own:
        engine.hold()
        got = []
        ask = lambda: got.append(own.post(COMPLETIONS, prompt="a", max_tokens=1)[0])  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        until(lambda: len(got) == 15)
        assert got == [429] * 15
        engine.free()
        for thread in threads:
            thread.join()
        assert sorted(got) == [200] * 5 + [429] * 15
        own.all_free()


def test_a_large_body_is_refused_while_it_is_read(engine):
    with serving(engine, max_body_bytes=1000) as own:
        assert own.post(COMPLETIONS, prompt="a" * 1000)[0] == 413
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        with own.send_raw(head + b"transfer-encoding: chunked\r\n\r\n") as connection:
            for _ in range(3):
                connection.sendall(b"190\r\n" + b"a" * 400 + b"\r\n")
            raw = read_all(connection)
        assert b"HTTP/1.1 413" in raw
        assert b'"code": "body_too_large"' in raw
        with own.send_raw(head + b"content-length: 99999999999999999999999\r\n\r\n") as connection:
            assert b" 400 " in connection.recv(1000)  # the HTTP parser has bounds of its own
        assert own.complete("abc", max_tokens=2)


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(engine):
    with serving(engine, body_seconds=1.0) as own:
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
        )
        with own.send_raw(head) as connection:
            assert b"HTTP/1.1 408" in connection.recv(1000)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_its_time(engine, stream):
    with serving(engine, request_seconds=1.0) as own:
        engine.hold()
        status, _, body = own.post(COMPLETIONS, prompt="a", stream=stream)  # which has a patience of its own
        assert (status, body["error"]["code"]) == (504, "timeout")
        engine.free()
        own.all_free()


@pytest.mark.parametrize(
    "route", ["/v1/models", "/slots", "/live", "/metrics", "/version", "/openapi.json", "/nothing"]
)
def test_with_a_key_every_route_wants_it(engine, route):
    with serving(engine, api_key="sécret") as own:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sécret".encode()}):
            status, got, body = own.ask("GET", route, headers=headers)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
            assert got["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer sécret".encode()}
        assert own.ask("GET", route, headers=right)[0] == (404 if route == "/nothing" else 200)


def test_the_key_guards_what_costs_most_and_leaves_open_what_holds_nothing(engine):
    with serving(engine, api_key="secret") as own:
        assert own.post(COMPLETIONS, prompt="a")[0] == 401
        assert own.post("/tokenize", prompt="a")[0] == 401
        assert own.ask("GET", "/health")[0] == 200
        assert b"secret" not in own.ask("GET", "/")[2]
        with (
            OpenAI(base_url=f"{own.url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(AuthenticationError),
        ):
            client.models.list()
        with OpenAI(base_url=f"{own.url}/v1", api_key="secret", max_retries=0) as client:
            assert client.completions.create(model=NAME, prompt="a", max_tokens=1).choices


@pytest.mark.parametrize(
    "given", [{"max_requests": 0}, {"request_seconds": float("inf")}, {"body_seconds": float("nan")}, {"max_n": -1}]
)
def test_limits_that_are_none_are_refused(given):
    with pytest.raises(OptionsError, match=next(iter(given))):
        ServerLimits(**given)


def test_nothing_is_logged_of_what_was_said(engine, caplog):
    with serving(engine) as own, caplog.at_level("INFO", "minfer.access"):
        own.post(COMPLETIONS, prompt="secretprompt", max_tokens=3, ignore_eos=True, user="secretuser")
        until(lambda: caplog.records)  # it is logged when it has been answered: before the next is, so
        own.post("/v1/chat/completions", messages=[{"role": "user", "content": "secretprompt"}], temperature=-1)
        until(lambda: len(caplog.records) >= 2)
        own.ask("GET", "/v1/models?secretprompt")
        until(lambda: len(caplog.records) >= 3)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "minfer.access"]
    assert "secret" not in caplog.text
    first = lines[0]
    assert (first["method"], first["path"], first["status"], first["completion_tokens"]) == (
        "POST",
        COMPLETIONS,
        200,
        3,
    )
    assert first["ttft_ms"] > 0
    assert first["ms"] >= first["ttft_ms"]
    assert lines[1]["status"] == 400
