"""`minfer serve`: an OpenAI-compatible HTTP API in front of an engine, with a live view."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import minfer
from minfer import NEWEST_PHASE, SERVING_PHASE
from minfer.commands.flags import flag_name, given_values, with_flags
from minfer.commands.phases import engine_class, first_phase, option_fields, options_class
from minfer.core.checkpoint.shapes import is_random
from minfer.core.errors import OptionsError
from minfer.core.extras import require
from minfer.core.hub import EMBEDDED, resolve
from minfer.serve.limits import ServerLimits

LOCAL = ("127.0.0.1", "localhost", "::1")


def _since(option: str) -> str:
    known = option in option_fields(NEWEST_PHASE)
    return f" (from phase {first_phase(option)} on)" if known and first_phase(option) > SERVING_PHASE else ""


@with_flags({"Engine": options_class(NEWEST_PHASE), "Limits": ServerLimits}, note=_since)
def serve(
    model: Annotated[
        str, typer.Option("--model", "-m", help="A pulled model's name, a folder, or random:<shape>.")
    ] = EMBEDDED,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0: for other machines too.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    phase: Annotated[
        int, typer.Option(help=f"Whose engine serves, {SERVING_PHASE} to {NEWEST_PHASE}; from 7 on it compiles first.")
    ] = NEWEST_PHASE,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name for clients; default: as given.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="MINFER_API_KEY", help="What clients must show; default: nothing.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="throughput: large steps; latency: small ones; auto: small while few are here.")
    ] = "auto",
    small_rows: Annotated[int, typer.Option(min=1, help="Most requests in a small step.")] = 8,
    small_prompt: Annotated[int, typer.Option(min=1, help="Most tokens of prompts in a small step.")] = 64,
    slo: Annotated[
        str | None, typer.Option(help="What counts as served well: chat, reading, answer, all; or ttft:500,tpot:50.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line for each request.")] = False,
    **flags: Any,
) -> None:
    """Serve a model by OpenAI's API until SIGTERM or Ctrl-C; the address shows what runs, live."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require(module, extra="serve", purpose="minfer serve")
    from minfer.serve.policy import Aim, Policy
    from minfer.serve.server import Server, listen, url_of
    from minfer.serve.service import Service
    from minfer.serve.slo import parse_slo

    limits = ServerLimits(**given_values(ServerLimits, flags))
    if policy not in [str(aim) for aim in Aim]:
        raise OptionsError(f"--policy {policy!r}: choose one of {', '.join(Aim)}")
    options, engine_cls = _options(phase, flags), engine_class(phase)
    service = Service(
        _about(model, served_model_name, phase),
        [lambda: engine_cls.load(model, **options)],
        Policy(Aim(policy), small_rows, small_prompt),
        limits,
        parse_slo(slo) if slo else None,
    )
    bound = listen(host, port)
    console = Console(stderr=True)
    if host not in LOCAL and not api_key:
        console.print("minfer: warning: other machines can use this server, and no --api-key was given", style="yellow")
    name = f"{service.about.model}, phase {phase}"
    with _logs(quiet), _loading(console, name, url_of(bound)) as when_ready:
        Server(service, api_key).serve_until_stopped(bound, when_ready)


@contextmanager
def _loading(console: Console, name: str, url: str) -> Iterator[Callable[[], None]]:
    """A line that shows that something is going on, until the function given is called; then the address."""
    started = time.perf_counter()
    status = console.status(f"loading {name} …")
    status.start()

    def when_ready() -> None:
        status.stop()
        seconds = time.perf_counter() - started
        console.print(f"minfer: ready after {seconds:.1f} s: {name}, at {url}", highlight=False, soft_wrap=True)

    try:
        yield when_ready
    finally:
        status.stop()


def _about(model: str, name: str | None, phase: int) -> Any:
    """What the service says of itself; a folder is known by its last part. Raises `MinferError` for no model."""
    from minfer.serve.service import About

    root = model if is_random(model) else str(resolve(model))
    last = Path(model).name if Path(model).is_dir() and model != EMBEDDED else model
    return About(name or last, root, phase, minfer.__version__, int(time.time()))


def _options(phase: int, flags: dict[str, Any]) -> dict[str, Any]:
    """The engine's options that were given. Raises `OptionsError` for a phase, or an option, that cannot be served."""
    if phase < SERVING_PHASE:
        raise OptionsError(f"--phase {phase}: serving begins with phase {SERVING_PHASE}, which schedules requests")
    valid = {field.name: field for field in fields(engine_class(phase).Options)}
    options = given_values(options_class(NEWEST_PHASE), flags)
    for name in options:
        if name not in valid:
            flag = flag_name(option_fields(NEWEST_PHASE)[name])
            raise OptionsError(f"phase {phase} has no {flag}: it comes with phase {first_phase(name)}")
    return options


@contextmanager
def _logs(quiet: bool) -> Iterator[None]:
    """One line of JSON for each request, without its text; warnings and errors in words. All on standard error.

    At the end the loggers are as they were: the process may go on, with another standard error.
    """
    access, others = logging.getLogger("minfer.access"), [*map(logging.getLogger, ("minfer.serve", "uvicorn.error"))]
    before = [(one, one.handlers, one.propagate, one.level) for one in (access, *others)]
    access.handlers = [_handler("%(message)s")]
    access.setLevel(logging.WARNING if quiet else logging.INFO)
    worded = _handler("minfer: %(levelname)s: %(message)s")
    for one in others:
        one.handlers = [worded]
    for one in (access, *others):
        one.propagate = False
    try:
        yield
    finally:
        for one, handlers, propagate, level in before:
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)


def _handler(form: str) -> logging.Handler:
    """Writes records of that form to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(form))
    return handler
