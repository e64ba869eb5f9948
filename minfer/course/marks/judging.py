"""Judging: from how a test ended to its status and to what its author reads."""

import linecache
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minfer.course.marks import screens
from minfer.course.marks.report import Entry, Status
from minfer.course.marks.verdict import Mismatch

TODO = re.compile(r"P(\d+) task (\d+)\b")
TIMEOUT = re.compile(r"Timeout \(?>([\d.]+)s\)?")


class Blocked(Exception):
    """A test is not run, since what it needs has not passed; the message says what that is."""


@dataclass(frozen=True)
class Judgement:
    """`lines` are the rest of the screen, after its heading."""

    status: Status
    lines: tuple[str, ...] = ()

    def screen(self, entry: Entry) -> str:
        """What the author reads."""
        if self.status is Status.TODO:
            return f"todo: {self.lines[0]}"
        if self.status is Status.BLOCKED:
            return f"blocked: {self.lines[0]}"
        return "\n".join([screens.heading(entry.code, entry.title, entry.points), *self.lines])


def judge(error: BaseException, entry: Entry, lacks_gpu: bool, tests: Sequence[Path]) -> Judgement:
    """Judge a test that ended with `error`; `tests` are the folders of the grader's own code.

    `lacks_gpu`: it was skipped before it began, since it needs a card and there is none.
    """
    kind = type(error).__name__
    if isinstance(error, Blocked):
        return Judgement(Status.BLOCKED, (str(error),))
    if isinstance(error, Mismatch):
        return Judgement(Status.FAILED, tuple(error.lines()))
    if isinstance(error, NotImplementedError) and _was_raised_in_python(error):
        return _todo(error, entry)
    if kind == "Failed" and (match := TIMEOUT.search(str(error))):
        return Judgement(
            Status.TIMEOUT, (f"  {'raised':<9} it was not done after {match[1]} s: is there a loop without end?",)
        )
    if kind in ("Skipped", "XFailed"):
        if lacks_gpu:
            return Judgement(Status.ABSENT, (f"  {'n/a':<9} {error}",))
        return Judgement(Status.SKIPPED, (f"  {'skipped':<9} by the engine: a test that is not run does not score",))
    return Judgement(Status.FAILED, tuple(screens.exception_lines(error, tests)))


def _todo(error: NotImplementedError, entry: Entry) -> Judgement:
    """To be done: by the task that the test checks, else the other task blocks it."""
    said = str(error) or "not implemented"
    match = TODO.match(said)
    if match and entry.task is not None and (int(match[1]), int(match[2])) != (entry.phase, entry.task):
        return Judgement(Status.BLOCKED, (f"task {match[2]} comes first ({said})",))
    return Judgement(Status.TODO, (said,))


def _was_raised_in_python(error: BaseException) -> bool:
    """Whether a `raise` made it, not an operator of torch that has no kernel."""
    frames = traceback.extract_tb(error.__traceback__)
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0) if frames else ""
    return not line or "raise" in line
