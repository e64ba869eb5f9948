"""The routes: from a request to `Service`, and from what it says to a response."""

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from minfer.core.errors import MinferError
from minfer.serve.answers import Answer, StreamedAnswer
from minfer.serve.errors import SERVER_ERROR, ApiError, invalid
from minfer.serve.gate import Gate
from minfer.serve.live import LiveView
from minfer.serve.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, ErrorReply, TokenizeRequest
from minfer.serve.replies import ChatReply, CompletionReply
from minfer.serve.service import Service

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply} for status in (400, 401, 404, 408, 413, 429, 500, 503, 504)
}


STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "whole, or with stream = true as events", "content": {"text/event-stream": {}}}
}


def create_app(service: Service, api_key: str | None = None) -> Gate:
    """The ASGI application."""
    app = FastAPI(title="minfer", version=service.about.version, docs_url=None, redoc_url=None, responses=REFUSALS)
    live = LiveView(service)
    _add_openai(app, service)
    _add_tokens(app, service)
    _add_views(app, service, live)
    _add_errors(app)
    return Gate(app, service.limits, api_key)


def _add_openai(app: FastAPI, service: Service) -> None:
    about, limits = service.about, service.limits

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(service)]}

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        service.check_model(model)
        return _model(service)

    @app.post("/v1/completions", responses=STREAMED)
    async def completions(body: CompletionRequest) -> Response:
        job = await service.begin(body)
        facts = (job.call, about.model, body.n or 1, about.fingerprint, body.include_usage)
        reply = CompletionReply(*facts, tokenizer=service.engine.tokenizer, echo=bool(body.echo))
        kind = StreamedAnswer if body.stream else Answer
        return kind(job, reply, limits.request_seconds)

    @app.post("/v1/chat/completions", responses=STREAMED)
    async def chat_completions(body: ChatRequest) -> Response:
        job = await service.begin(body)
        facts = (job.call, about.model, body.n or 1, about.fingerprint, body.include_usage)
        reply = ChatReply(*facts, tokenizer=service.engine.tokenizer)
        kind = StreamedAnswer if body.stream else Answer
        return kind(job, reply, limits.request_seconds)


def _model(service: Service) -> dict[str, Any]:
    about = service.about
    return {
        "id": about.model,
        "object": "model",
        "created": about.created,
        "owned_by": "minfer",
        "root": about.root,
        "max_model_len": service.engine.context,
    }


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        service.check_model(body.model)
        tokenizer = service.engine.tokenizer
        if (body.prompt is None) == (body.messages is None):
            raise ApiError("prompt and messages: give one of them", param="prompt")
        try:
            if body.messages is not None:
                asked = body.add_generation_prompt is not False
                messages = [message.plain() for message in body.messages]
                chat = lambda: tokenizer.apply_chat_template(messages, add_generation_prompt=asked)  # noqa: E731
                ids = await service.off_loop(chat)
            else:
                special = body.add_special_tokens is not False
                ids = await service.off_loop(lambda: tokenizer.encode(body.prompt, add_special_tokens=special))
        except MinferError as error:
            raise ApiError(str(error), param="prompt" if body.messages is None else "messages") from error
        return {"tokens": ids, "count": len(ids), "max_model_len": service.engine.context}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        service.check_model(body.model)
        try:
            return {"prompt": await service.off_loop(service.engine.tokenizer.decode, body.tokens)}
        except MinferError as error:
            raise ApiError(str(error), param="tokens") from error


def _add_views(app: FastAPI, service: Service, live: LiveView) -> None:
    page = files("minfer.serve").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": "default-src 'self' 'unsafe-inline'"})

    @app.get("/health")
    async def health() -> JSONResponse:
        status = 200 if service.state in ("ok", "degraded") else 503
        return JSONResponse({"status": service.state}, status)

    @app.get("/version")
    async def version() -> dict[str, Any]:
        return {"version": service.about.version, "phase": service.about.phase}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        text = service.metrics.text(await live.replicas())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/slots")
    async def slots() -> JSONResponse:
        return JSONResponse(await live.slots())

    @app.get("/live")
    async def live_view() -> JSONResponse:
        return JSONResponse(await live.everything())


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def not_valid(_: Request, error: RequestValidationError) -> Response:
        return invalid(list(error.errors())).response()

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ApiError):  # raised while the body was read
            return error.__cause__.response()
        headers = dict(error.headers or {})
        return ApiError(str(error.detail), status=error.status_code, headers=headers).response()

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        return ApiError(f"an error in the server: {type(error).__name__}", status=500, kind=SERVER_ERROR).response()
