"""Faults in the engine's thread: who is to blame gets an error, others their answers, and a dead engine is known."""

import threading
import time
from types import SimpleNamespace

import pytest
from openai import APIError, InternalServerError, OpenAI

from minfer.core.group import RankError
from tests.serve.serving import NAME, PATIENCE, Stepped, engine_of, read_all, serving, until

COMPLETIONS = "/v1/completions"
MARK = 9
"""A request whose prompt begins with this token is to blame."""


class Faulty(Stepped):
    """Raises where and when a test says."""

    in_forward = None  # raised with the marked request in the step
    planted = ()  # raised by steps, one after another

    def forward(self, batch):
        if self.in_forward and any(sequence.prompt_ids[0] == MARK for sequence in self.scheduled):
            raise self.in_forward
        return super().forward(batch)

    def step(self):
        advanced = super().step()
        if self.planted:
            error, *rest = self.planted
            self.planted = tuple(rest)
            raise error
        return advanced


@pytest.fixture
def engine(module, tokenizer):
    return engine_of(module, tokenizer, Faulty)


@pytest.fixture
def own(engine):
    with serving(engine) as made:
        yield made


def works(own):
    own.all_free()
    assert own.ask("GET", "/health")[0] == 200
    assert own.complete("abc", max_tokens=3)["finish_reason"]


def test_a_view_that_fails_ends_nothing(own, monkeypatch):
    def fails():
        raise ArithmeticError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(own.service.engines[0].attendant, "snapshot", fails)
        assert own.ask("GET", "/slots")[0] == 200  # as of the last look
    works(own)


@pytest.mark.filterwarnings("ignore:a step of")
def test_only_the_culprit_fails_and_its_neighbours_are_answered(own, engine):
    want = own.complete("neighbour", max_tokens=20, ignore_eos=True)
    engine.in_forward = ArithmeticError("planted")
    got = {}

    def neighbour():
        got["it"] = own.complete("neighbour", max_tokens=20, ignore_eos=True)

    thread = threading.Thread(target=neighbour)
    thread.start()
    status, headers, body = own.post(COMPLETIONS, prompt=[MARK, 5])
    thread.join()
    assert (status, body["error"]["code"]) == (500, "engine_error")
    assert body["error"]["message"] == "ArithmeticError: planted"
    assert headers["x-should-retry"] == "false", "the same would fail again"
    assert got["it"] == want
    works(own)


def test_in_the_middle_of_a_stream_there_is_an_error_event_and_the_client_raises(own, engine):
    engine.hold()
    client = OpenAI(base_url=f"{own.url}/v1", api_key="none", max_retries=0)
    engine.let(4)
    with client:
        stream = client.completions.create(
            model=NAME, prompt=[MARK, 5], max_tokens=50, stream=True, extra_body={"ignore_eos": True}
        )
        pieces = [next(stream) for _ in range(3)]
        assert all(piece.choices for piece in pieces)
        engine.in_forward = ArithmeticError("planted")
        engine.free()
        with pytest.raises(APIError, match="planted"):
            list(stream)
    works(own)


def test_before_the_first_token_of_a_stream_the_status_says_it(own, engine):
    engine.in_forward = ArithmeticError("planted")
    with OpenAI(base_url=f"{own.url}/v1", api_key="none", max_retries=0) as client, pytest.raises(InternalServerError):
        client.completions.create(model=NAME, prompt=[MARK, 5], stream=True)
    works(own)


def test_a_step_that_raises_fails_who_was_in_it_and_the_server_goes_on(own, engine):
    engine.hold()
    connections = [
        own.open(COMPLETIONS, prompt=prompt, max_tokens=90, stream=True, ignore_eos=True) for prompt in ("ab", "cd")
    ]
    until(lambda: own.service.engines[0].seen)
    own.step_until(lambda: len(own.service.engines[0].seen) == 2)
    engine.planted = (RuntimeError("planted"),)
    engine.let(1)
    for connection in connections:
        assert b"RuntimeError: planted" in read_all_of_stream(connection)
    engine.free()
    works(own)


def test_at_the_deadline_of_the_end_nobody_waits_for_a_step_that_hangs(engine):
    """Such as one in which a rank gives no answer: the server would be gone before the step is."""
    with serving(engine) as own:
        engine.hold()
        connections = [own.open(COMPLETIONS, prompt="abc", max_tokens=9, stream=stream) for stream in (False, True)]
        until(lambda: own.service.engines[0].load == 2)
        own.server.should_exit = True
        for connection in connections:
            raw = read_all(connection)
            assert raw.startswith(b"HTTP/1.1 503 ")
            assert b'"code": "shutting_down"' in raw


def test_an_idle_engine_that_has_lost_a_process_is_not_healthy(own, engine):
    """Its next step would fail: whoever asks /health before they send a request should go elsewhere."""
    rank = SimpleNamespace(is_dead=False)
    engine.ranks = SimpleNamespace(others=SimpleNamespace(all=[rank]))
    assert own.ask("GET", "/health")[::2] == (200, {"status": "ok"})
    rank.is_dead = True
    assert own.ask("GET", "/health")[::2] == (503, {"status": "dead"})


def read_all_of_stream(connection):
    raw = b""
    while b"[DONE]" not in raw and b'"error"' not in raw:
        part = connection.recv(65536)
        assert part, raw
        raw += part
    return raw


@pytest.mark.parametrize("deaths", [(SystemExit("planted"),), (RuntimeError("planted"),) * 3])
def test_a_dead_engine_fails_all_that_waits_at_once_and_is_no_longer_healthy(own, engine, deaths):
    engine.hold()
    bodies = [
        {"prompt": f"a{n}", "max_tokens": 200, "stream": n % 2 == 0, "ignore_eos": True} for n in range(12)
    ]  # more than the batch
    connections = [own.open(COMPLETIONS, **body) for body in bodies]
    until(lambda: own.service.admission.requests == 12)
    own.step_until(lambda: len(own.service.engines[0].seen) == 12)
    late = [own.open(COMPLETIONS, **bodies[0]) for _ in range(2)]  # not taken in yet
    until(lambda: own.service.admission.requests == 14)
    engine.planted = deaths
    before = time.monotonic()
    engine.free()
    for connection in [*connections, *late]:
        raw = read_all_of_stream(connection)
        assert b"planted" in raw or b"the engine is dead" in raw
    assert time.monotonic() - before < PATIENCE / 2, "each was waited for"
    if own.service.engines[0].thread.is_alive():  # all were ended by two failed steps: one more for the third
        own.post(COMPLETIONS, prompt="a")
    own.service.engines[0].thread.join(PATIENCE)
    status, _, body = own.ask("GET", "/health")
    assert (status, body) == (503, {"status": "dead"})
    status, headers, body = own.post(COMPLETIONS, prompt="a")
    assert (status, body["error"]["type"]) == (503, "server_error")
    assert headers["retry-after"]
    assert own.service.admission.requests == 0
    for path in ("/live", "/slots", "/metrics", "/v1/models"):
        assert own.ask("GET", path)[0] in (200, 503)


def test_an_engine_that_has_lost_a_rank_is_dead(own, engine):
    """The request fails as of any fault; but no later one could do better."""
    engine.in_forward = RankError("rank 1 has ended")
    status, _, body = own.post(COMPLETIONS, prompt=[MARK, 5])
    assert (status, body["error"]["message"]) == (500, "RankError: rank 1 has ended")
    until(lambda: own.ask("GET", "/health")[0] == 503)
    assert own.post(COMPLETIONS, prompt="a")[0] == 503


def test_health_while_loading(engine):
    go = threading.Event()

    def load():
        go.wait()
        return engine

    with serving([load], wait=False) as own:
        assert own.ask("GET", "/health")[::2] == (503, {"status": "loading"})
        status, _, body = own.post(COMPLETIONS, prompt="a")
        assert (status, body["error"]["code"]) == (503, "loading")
        assert own.ask("GET", "/live")[2]["engines"][0]["state"] == "loading"
        go.set()
        until(lambda: own.ask("GET", "/health")[0] == 200)
        works(own)


def test_a_step_that_hangs_makes_it_unhealthy_until_it_ends(module, tokenizer):
    engine = engine_of(module, tokenizer)
    with serving(engine, stall_seconds=1.0) as own:
        engine.hold()
        connection = own.open(COMPLETIONS, prompt="a", max_tokens=2)
        until(lambda: own.service.engines[0].seen)
        until(lambda: own.ask("GET", "/health")[0] == 503)
        assert own.ask("GET", "/health")[2] == {"status": "stalled"}
        engine.free()
        until(lambda: own.ask("GET", "/health")[0] == 200)
        connection.close()


def test_one_of_two_engines_dies_and_the_other_serves(module, tokenizer):
    engines = [engine_of(module, tokenizer, Faulty) for _ in range(2)]
    with serving([lambda: engines[0], lambda: engines[1]]) as own:
        assert all(own.complete("abc", max_tokens=2) for _ in range(3))
        engines[0].planted = (SystemExit("planted"),)
        assert own.post(COMPLETIONS, prompt="abc", max_tokens=3)[0] == 503
        assert own.ask("GET", "/health")[::2] == (200, {"status": "degraded"})
        assert [own.post(COMPLETIONS, prompt="abc", max_tokens=3)[0] for _ in range(4)] == [200] * 4


def test_two_engines_share_the_work(module, tokenizer):
    engines = [engine_of(module, tokenizer) for _ in range(2)]
    with serving([lambda: engines[0], lambda: engines[1]]) as own:
        for engine in engines:
            engine.hold()
        connections = [own.open(COMPLETIONS, prompt="abc", max_tokens=100) for _ in range(6)]
        until(lambda: own.service.admission.requests == 6)
        until(lambda: [thread.load for thread in own.service.engines] == [3, 3])
        for connection in connections:
            connection.close()
        for engine in engines:
            engine.free()
