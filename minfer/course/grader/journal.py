"""Journal: what the processes that grade one engine write, one JSON object a line, and their parent reads meanwhile.

plan       the report, with all tests to be run
start      of a test
ask        the test is over, and planted mistakes are tried on it; not of every test
result     of the test
end        of the process
refused    instead of all that: the engine is not graded
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from minfer.course.marks.report import Entry, Report, Status

LOST = (Status.CRASHED, Status.TIMEOUT)


class Journal:
    """What the children of one submission have written: a report that fills.

    After `losses` tests that crashed or did not end it takes in nothing more, so the report does not depend on when its
    reader looks.
    """

    def __init__(self, path: Path, losses: int) -> None:
        self.path, self.losses = path, losses
        self.file: BinaryIO | None = None
        """Held open: what was written is read, though its writer has since removed it or put something in its place."""
        self.report: Report | None = None
        self.by_test: dict[str, Entry] = {}
        self.running: str | None = None
        self.is_over = False  # the test that is running: planted mistakes are tried on what it found
        self.ended = False
        self.since = time.monotonic()
        """When something was last written."""

    def new_child(self) -> None:
        """Another child begins; it gets a new file if the last one's is no longer in its place."""
        if self.file is not None and not _is_at(self.path, self.file):
            self.close()
        if self.file is None:
            self.path.unlink(missing_ok=True)
            self.file = open(self.path, "a+b")  # noqa: SIM115 (lives until close)
        self.running, self.ended, self.since = None, False, time.monotonic()

    def follow(self) -> None:
        """Take in the lines that are new, as far as they are whole."""
        if self.file is None:
            return
        since = self.file.tell()
        whole, newline, _ = self.file.read().rpartition(b"\n")
        self.file.seek(since + len(whole) + len(newline))
        for line in whole.splitlines():
            if self.is_given_up:
                return
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
                self._take(json.loads(line))  # which the graded engine may have spoilt
            self.since = time.monotonic()

    def close(self) -> None:
        """No more is read."""
        if self.file is not None:
            self.file.close()
        self.file = None

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "plan" and self.report is None:
            self.report = Report.from_dict(event["report"])
            self.by_test = {entry.test: entry for entry in self.report.entries}
        elif kind == "refused":
            self.report = self.report or Report.from_dict(event["report"])
            self.report.note = str(event["note"])
        elif kind == "start":
            self.running, self.is_over = event["test"], False
        elif kind == "ask":
            self.is_over = True
        elif kind == "result":
            ended = Entry.from_dict(event["entry"])
            entry = self.by_test[ended.test]
            entry.status, entry.message = ended.status, ended.message
            entry.looks_like, entry.seconds = ended.looks_like, ended.seconds
            self.running = None
        elif kind == "end":
            self.ended = True

    @property
    def done(self) -> list[str]:
        """The tests that need not run again."""
        return [test for test, entry in self.by_test.items() if entry.status is not Status.NOT_RUN]

    @property
    def lost(self) -> list[Entry]:
        """The tests that crashed or did not end."""
        return [entry for entry in self.by_test.values() if entry.status in LOST]

    @property
    def is_given_up(self) -> bool:
        """Whether so many tests are lost that the rest is not run."""
        return len(self.lost) >= self.losses

    def blame(self, status: Status, why: str) -> bool:
        """Mark the test that had started last; False if there is none."""
        entry = self.by_test.get(self.running or "")
        if entry is None:
            return False
        entry.status, entry.message = status, f"{entry.code}  {entry.title}\n  {'raised':<9} {why}"
        entry.seconds = round(time.monotonic() - self.since, 3)
        self.running = None
        return True

    def block(self) -> None:
        """Mark what needs a test that did not pass: another child would not know of it."""
        if self.report is None:
            return
        for entry in self.report.entries:  # each comes after those that it needs
            if entry.status is Status.NOT_RUN and (obstacle := self.report.obstacle(entry)):
                entry.status, entry.message = Status.BLOCKED, f"blocked: {obstacle}"


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether the name is still that of the file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file.fileno()))
    except OSError:
        return False
