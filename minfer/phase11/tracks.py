"""Tracks: what the log knows of each step, as counter tracks of a trace."""

from collections.abc import Iterator
from typing import Any

from minfer.core.measures.trace import Counter
from minfer.phase11.laps import RANGE
from minfer.phase11.observer import Turn
from minfer.phase11.step_log import StepLog


def tracks(records: list[Any], turns: list[Turn], log: StepLog) -> Iterator[Counter]:
    """Samples for the ranges in a trace's records of some turns, the last of which is the trace's last.

    Tokens are what is computed from a step's launch on; requests and blocks are as the turn has left them.
    """
    launched = [observed for turn in turns for observed in turn.launched]
    for record, observed in _last(records, "prepare", launched):
        tokens = sum(one.tokens for one in observed.work)
        padded = observed.counted.graph_rows - observed.counted.rows
        yield Counter("tokens in the step", record.start_ns(), {"for requests": tokens, "padding": padded})
    kept = log.numbers()
    for record, turn in _last(records, "step", turns):
        if turn.over and turn.over[-1] in kept:
            line = log.line(turn.over[-1])
            yield Counter("requests", record.end_ns(), {name: line[name] for name in ("running", "waiting")})
            yield Counter("blocks of the KV cache", record.end_ns(), {"used": line["used_blocks"]})


def _last(records: list[Any], name: str, things: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each range of that name with its thing; a turn that was under way when the trace began has no range."""
    ranges = [record for record in records if record.name() == RANGE + name]
    return zip(reversed(ranges), reversed(things), strict=False)
