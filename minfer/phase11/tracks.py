"""Tracks: what the log knows of each step, as counter tracks of a trace."""

from collections.abc import Iterator
from typing import Any

from minfer.core.trace import Counter
from minfer.phase11.laps import RANGE
from minfer.phase11.step_log import StepLog


def tracks(records: list[Any], numbers: list[int | None], log: StepLog) -> Iterator[Counter]:
    """Samples for each range of a step in a trace's records; `numbers` are those of its lines in `log`, None: no line.

    Tokens are what is computed from the step's start on; requests and blocks are as the step has left them.
    """
    steps = [record for record in records if record.name() == RANGE + "step"]
    kept = log.numbers()
    for record, number in zip(reversed(steps), reversed(numbers), strict=False):  # the first may have begun untraced
        if number is not None and number in kept:
            yield from _samples(record, log.line(number))


def _samples(record: Any, line: dict[str, Any]) -> Iterator[Counter]:
    start, end = record.start_ns(), record.end_ns()
    yield Counter("tokens in the step", start, {"for requests": line["tokens"], "padding": line["padded"]})
    yield Counter("requests", end, {name: line[name] for name in ("running", "waiting")})
    yield Counter("blocks of the KV cache", end, {"used": line["used_blocks"]})
