"""Gate: what every request passes, whatever its route: the key, the body's size and time, its id, the log.

Plain ASGI: Starlette's BaseHTTPMiddleware would hide from the routes that a client has gone.
"""

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minfer.serve.errors import ApiError
from minfer.serve.limits import ServerLimits

access_log = logging.getLogger("minfer.access")

OPEN_PATHS = ("/", "/health")
"""Need no key: the page holds no data, and a load balancer has none."""
REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Gate:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, limits: ServerLimits, api_key: str | None) -> None:
        self.app, self.limits = app, limits
        self.expected = None if api_key is None else b"Bearer " + api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        entry: dict[str, Any] = {"id": request_id.decode(), "method": scope["method"], "path": scope["path"][:200]}
        scope["minfer.log"] = entry
        started = time.perf_counter()

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry["status"] = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        try:
            self._check(scope["path"], headers)
            await self.app(scope, self._limited(receive), send_marked)
        except ApiError as error:
            await error.response()(scope, receive, send_marked)
        finally:
            entry["ms"] = round(1000 * (time.perf_counter() - started), 1)
            access_log.info(json.dumps({"time": round(time.time(), 3), **entry}))

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        given = headers.get(b"authorization", b"")
        is_open = self.expected is None or path in OPEN_PATHS
        if not is_open and not hmac.compare_digest(given, self.expected or b""):  # bytes, in constant time
            raise ApiError(
                "this server wants its key, as in: Authorization: Bearer KEY",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self.limits.max_body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """`receive`, which counts the bytes of the body while it is read, and the time until its end."""
        size, reading = 0, True
        deadline = asyncio.get_running_loop().time() + self.limits.body_seconds

        async def limited() -> Message:
            nonlocal size, reading
            if not reading:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), deadline - asyncio.get_running_loop().time())
            except asyncio.TimeoutError as error:
                seconds = self.limits.body_seconds
                raise ApiError(f"the body did not arrive within {seconds:g} s", status=408, code="timeout") from error
            size += len(message.get("body", b""))
            reading = message["type"] == "http.request" and message.get("more_body", False)
            if size > self.limits.max_body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> ApiError:
        most = self.limits.max_body_bytes
        return ApiError(
            f"the body is larger than {most} bytes", status=413, code="body_too_large", headers={"connection": "close"}
        )
