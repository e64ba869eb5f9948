"""A batch of requests through an engine: a progress bar on standard error, a line of JSON for each answer."""

import dataclasses
import json
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

from minfer.commands.prompt_file import Request
from minfer.core.errors import MinferError, RequestError
from minfer.core.sequence import Completion, Sequence, Timestamps
from minfer.plots.recording import Recording


def run_batch(
    engine: Any, requests: list[Request], out: Path | None, quiet: bool, recording: Recording | None = None
) -> list[Sequence]:
    """Answer all requests; their answers go to `out` (default: standard output), in the order of the file.

    `recording` takes down every step. A line is written as soon as it and all before it are finished, so what is done
    survives an interrupt. Raises `RequestError` with the request's place if the model cannot take one, before any is
    run.
    """
    groups = [_sequences(engine, request) for request in requests]
    sequences = [sequence for group in groups for sequence in group]
    numbers = [number for number, group in enumerate(groups) for _ in group]
    waiting = deque(zip(numbers, sequences, strict=True))
    # in this order: while there is a bar, sys.stdout is not standard output
    with _output(out) as stream, _progress(len(sequences), hidden=quiet or _shows_lines(out)) as advance:
        with closing(engine.run(sequences)) as steps:
            for advanced in steps:
                advance(advanced)
                if recording:
                    recording.note(engine, sequences, advanced)
                _write_finished(waiting, stream)
        _write_finished(waiting, stream)
    return sequences


def _sequences(engine: Any, request: Request) -> list[Sequence]:
    try:
        return engine.sequences([request.prompt], request.params)
    except MinferError as error:
        raise RequestError(f"{request.place}: {error}") from error


def _write_finished(waiting: deque[tuple[int, Sequence]], stream: TextIO) -> None:
    """Write the answers at the head of `waiting` that are finished, and take them off it."""
    while waiting and waiting[0][1].finished:
        number, sequence = waiting.popleft()
        print(json.dumps(answer(number, sequence.completion(), sequence.params.n)), file=stream, flush=True)


def answer(number: int, completion: Completion, samples: int = 1) -> dict[str, Any]:
    """One line of the output: `index` counts the file's prompts from 0, `sample` those of one prompt with n > 1."""
    optional = {
        "sample": completion.index if samples > 1 else None,
        "logprobs": _plain(completion.logprobs),
        "prompt_logprobs": _plain(completion.prompt_logprobs),
        "error": completion.error,
    }
    return {
        "index": number,
        "prompt": completion.prompt,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason.value,
        "stop_reason": completion.stop_reason,
        **{key: value for key, value in optional.items() if value is not None},
        "timings": timings(completion.timestamps),
    }


def timings(stamps: Timestamps) -> dict[str, float | None]:
    """Seconds from the request's arrival to its start, its first token and its end; None: did not happen."""
    moments = {
        "queued_s": stamps.scheduled,
        "first_token_s": stamps.tokens[0] if stamps.tokens else None,
        "total_s": stamps.finished,
    }
    return {key: None if at is None else round(at - stamps.arrived, 6) for key, at in moments.items()}


def _plain(logprobs: list[Any] | None) -> list[dict[str, Any] | None] | None:
    if logprobs is None:
        return None
    return [None if one is None else dataclasses.asdict(one) for one in logprobs]


@contextmanager
def _output(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    try:
        stream = out.open("w", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {out}: {error.strerror}") from error
    with stream:
        yield stream


def _shows_lines(out: Path | None) -> bool:
    """Whether the answers themselves appear on the terminal, where a bar would get between them."""
    return out is None and sys.stdout.isatty()


@contextmanager
def _progress(total: int, hidden: bool) -> Iterator[Any]:
    """A bar of finished requests; yields the function that takes the sequences which a step advanced."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[tokens]} tokens"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=hidden) as bar:
        task = bar.add_task("", total=total, tokens=0)
        tokens = 0

        def advance(advanced: list[Sequence]) -> None:
            nonlocal tokens
            tokens += len(advanced)
            bar.update(task, advance=sum(sequence.finished for sequence in advanced), tokens=tokens)

        yield advance
