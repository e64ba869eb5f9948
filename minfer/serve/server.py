"""Server: the socket, the event loop, the start and the orderly end."""

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from minfer.core.errors import OptionsError
from minfer.serve.app import create_app
from minfer.serve.errors import unavailable
from minfer.serve.service import Service

LAST_WORDS = 5.0
"""Seconds that responses have to end in, when all requests have been ended."""
IDLE_CONNECTION = 30
"""Seconds after which a connection without a request is closed."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port that is taken is known before anything is loaded.

    Port 0 takes a free one. Raises `OptionsError` in one line.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(
            family, socket.SOCK_STREAM, socket.IPPROTO_TCP
        )  # asyncio takes Nagle off those of TCP only
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionsError(f"cannot listen at {host}:{port} ({reason}): choose another --port or --host") from error
    return made


def url_of(bound: socket.socket) -> str:
    """The address for a browser."""
    host, port = bound.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


class Server(uvicorn.Server):
    """Speaks HTTP while the engines load, serve and drain."""

    def __init__(self, service: Service, api_key: str | None = None) -> None:
        self.service = service
        config = uvicorn.Config(
            create_app(service, api_key),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_CONNECTION,
            timeout_graceful_shutdown=int(service.limits.drain_seconds + LAST_WORDS),
        )
        super().__init__(config)
        self.failure: BaseException | None = None

    def serve_until_stopped(self, bound: socket.socket, when_ready: Callable[[], None]) -> None:
        """Load the engines, say so, serve; returns after SIGTERM or Ctrl-C. Raises what loading failed with."""
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self.service.start()
        threading.Thread(target=self._await_engines, args=(when_ready,), name="loading", daemon=True).start()
        try:
            self.run(sockets=[bound])
        finally:
            self.service.stop()
        if self.failure is not None:
            raise self.failure

    def _await_engines(self, when_ready: Callable[[], None]) -> None:
        try:
            self.service.load_all()
        except BaseException as error:
            self.failure = error
            self.should_exit = True
            return
        gc.collect()
        gc.freeze()  # what was loaded stays: the collector need not look at it between two tokens
        when_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain; a second one: do not wait. It is not raised again: an orderly end is a success."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs finish; at the deadline end it, with an error that says so."""
        self.service.drain()
        reason = unavailable("the server is shutting down", "shutting_down", 5)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.service.limits.drain_seconds, self.service.end_all, reason)
        await super().shutdown(sockets)
        timer.cancel()
