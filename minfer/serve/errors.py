"""ApiError: what a client did wrong, or what became of its request, in the shape that OpenAI's clients read."""

import json
from typing import Any

from starlette.responses import Response

SERVER_ERROR = "server_error"
BAD_REQUEST = "invalid_request_error"


class ApiError(Exception):
    """Ends a request with `{"error": {message, type, param, code}}`; `param` is the field that is to blame."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        """The whole answer."""
        return Response(self.content(), self.status, self.headers, media_type="application/json")

    def content(self) -> bytes:
        """The body. ASCII, since a message may quote what no encoding can hold."""
        return json.dumps(self.body).encode()


def engine_error(message: str, status: int = 500) -> ApiError:
    """The engine could not go on with a request; the same again would fail again, so clients shall not retry."""
    return ApiError(message, status=status, kind=SERVER_ERROR, code="engine_error", headers={"x-should-retry": "false"})


def unavailable(message: str, code: str, retry_after: int = 1) -> ApiError:
    """Nobody can be served now."""
    headers = {"retry-after": str(retry_after)}
    return ApiError(message, status=503, kind=SERVER_ERROR, code=code, headers=headers)


def overloaded(message: str, retry_after: int) -> ApiError:
    """There is too much to do already."""
    headers = {"retry-after": str(retry_after)}
    return ApiError(message, status=429, kind="rate_limit_error", code="overloaded", headers=headers)


def unsupported(param: str, message: str) -> ApiError:
    """A field that means something which this server does not do."""
    return ApiError(f"{param}: {message}", param=param, code="unsupported_value")


ALTERNATIVES = {
    "prompt": "it must be a text, a list of texts, a list of token ids or a list of such lists, and none of them empty",
    "stop": "it must be a string, or a list of at most 64 of them, of 1 to 1000 characters each",
    "content": 'it must be a text, or a list of {"type": "text", "text": …}',
}
"""What is said of a field of several types, where pydantic says why it is none of each."""


def invalid(errors: list[Any]) -> ApiError:
    """What pydantic found wrong with a body, told by its first finding and the field that it is in."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(f"the body is not JSON: {first['ctx']['error']}, at character {place[0]}")
    if isinstance(first.get("input"), bytes):
        return ApiError("the body was not read: send it with content-type: application/json")
    if not place:
        return ApiError(f"the body is not a JSON object of this endpoint: {first['msg']}")
    for depth, part in enumerate(place):
        if part in ALTERNATIVES and first["type"] != "missing":
            return ApiError(f"{_path(place[: depth + 1])}: {ALTERNATIVES[part]}", param=place[0])
    given = "" if first["type"] == "missing" else f" is {_short(first.get('input'))}"
    return ApiError(f"{_path(place)}{given}: {first['msg'].removeprefix('Value error, ')}", param=place[0])


def _path(place: list[str]) -> str:
    """`messages[0].role`"""
    return "".join(f"[{part}]" if part.isdigit() else f".{_cut(part)}" for part in place).lstrip(".")


def _short(value: Any) -> str:
    return _cut(repr(value)) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
