"""A server under test: on loopback, at a free port, in this process, with an engine that a test can hold and break."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

from minfer.core.options import make_options
from minfer.phase5 import Engine
from minfer.serve.limits import ServerLimits
from minfer.serve.policy import Policy
from minfer.serve.server import Server, listen
from minfer.serve.service import About, Service

PATIENCE = 60
"""Seconds after which something that does not come counts as hung."""
NAME = "letters"


class Stepped(Engine):
    """An engine that takes a step only when it is let; at first it is free."""

    held = None
    allowed = begun = 0  # steps since `hold`

    def hold(self):
        """From now on no step, except those that `let` allows."""
        self.allowed = self.begun = 0
        self.held = threading.Semaphore(0)

    def let(self, steps):
        self.allowed += steps
        self.held.release(steps)

    def free(self):
        held, self.held = self.held, None
        held.release(1000)

    def step(self):
        held = self.held
        if held is not None:
            held.acquire()
            self.begun += 1
        return super().step()


class Serving:
    """A server that runs, and what a client does with it."""

    def __init__(self, server, bound):
        self.server, self.service, self.port = server, server.service, bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def engine(self):
        return self.service.engine

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, parsed body) of one request; `body`: JSON values, or bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        raw = response.read()
        connection.close()
        is_json = (response.headers["content-type"] or "").startswith("application/json")
        return response.status, response.headers, json.loads(raw) if is_json else raw

    def post(self, path, **body):
        return self.ask("POST", path, {"model": NAME, **body})

    def complete(self, prompt="abc", **body):
        """The first choice of a greedy completion."""
        status, _, answer = self.post("/v1/completions", prompt=prompt, **{"temperature": 0, **body})
        assert status == 200, answer
        return answer["choices"][0]

    def stream(self, path, **body):
        """The events of a stream, parsed; the last is the text "[DONE]"."""
        status, headers, raw = self.post(path, stream=True, **body)
        assert status == 200, raw
        assert headers["content-type"].startswith("text/event-stream")
        assert raw.endswith(b"\n\n")
        events = raw.decode().removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") and "\n" not in event for event in events)
        data = [event.removeprefix("data: ") for event in events]
        return [one if one == "[DONE]" else json.loads(one) for one in data]

    def open(self, path, receive_buffer=None, **body):
        """A socket on which a request was sent, and nothing read; `receive_buffer`: bytes."""
        data = json.dumps({"model": NAME, **body}).encode()
        return self.send_raw(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode()
            + data,
            receive_buffer,
        )

    def send_raw(self, data, receive_buffer=None):
        made = socket.socket()
        made.settimeout(PATIENCE)
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect(("127.0.0.1", self.port))
        made.sendall(data)
        return made

    def step_until(self, reached):
        """One step after another of a held engine: what has come is taken in between two.

        At most one is allowed ahead: else as many as there were looks could end what a test has begun.
        """

        def stepped():
            if self.engine.begun >= self.engine.allowed:
                self.engine.let(1)
            return reached()

        until(stepped)

    def all_free(self):
        """Wait until nothing is in hand; then every block must be free."""
        until(lambda: not self.service.engines[0].seen and not self.service.admission.requests)
        state = self.engine.debug_state()
        assert state["free"] == state["num_blocks"]
        assert (state["running"], state["waiting"], state["tables"]) == ([], [], {})
        assert (self.service.admission.requests, self.service.admission.tokens) == (0, 0)


def until(reached):
    """Wait until `reached()` is true."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.002)


def read_all(connection):
    """All that comes until the other side closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


@contextmanager
def serving(engine, policy=None, slo=None, api_key=None, wait=True, **limits):
    """A running server in front of `engine` (or of what a list of functions loads), stopped at the end."""
    loads = engine if isinstance(engine, list) else [lambda: engine]
    about = About(NAME, "nowhere", 5, "0", 0)
    service = Service(about, loads, policy or Policy(), ServerLimits(**{"drain_seconds": 0, **limits}), slo)
    server, bound, ready = Server(service, api_key), listen("127.0.0.1", 0), threading.Event()
    thread = threading.Thread(target=server.serve_until_stopped, args=(bound, ready.set), daemon=True)
    thread.start()
    assert not wait or ready.wait(PATIENCE)
    until(lambda: server.started)
    try:
        yield Serving(server, bound)
    finally:
        if getattr(engine, "held", None):
            engine.free()
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"


def engine_of(model, tokenizer, engine_cls=Stepped, **options):
    """An engine for a module."""
    small = {"block_size": 4, "num_blocks": 600, "max_batch": 8, "device": "cpu", **options}
    return engine_cls(model, tokenizer, make_options(engine_cls.Options, small))
