"""Child: grade one engine in processes of its own, whatever it does to them.

The child writes a journal: the plan, each test's start, each result, the end. The parent reads it as it grows. A child
that is gone before its journal's end, or that does not come back from a test, has crashed or hung in the test that had
started last; that test is marked so, and another child goes on behind it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minfer
from minfer.course.grader.confine import namespaces
from minfer.course.grader.excerpt import Excerpt
from minfer.course.marks.report import Entry, Report, Status

MINFER = Path(minfer.__file__).parents[1]
POLL = 0.05  # seconds
STARTING = 120  # seconds from a child's start to its first test, or from one test to the next
GRACE = 5  # seconds for a test to end after its own time limit should have ended it
PASSED_ON = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "SYSTEMROOT")


@dataclass(frozen=True)
class Limits:
    """What one submission may take."""

    seconds: float = 300.0
    test_seconds: float = 60.0
    memory_gb: float = 4.0
    children: int = 6
    """How many processes in all: one, and one more after each crash."""


class Journal:
    """What the children of one submission have written: a report that fills."""

    def __init__(self, path: Path) -> None:
        self.path, self.read = path, 0
        self.report: Report | None = None
        self.by_test: dict[str, Entry] = {}
        self.running: str | None = None
        self.ended = False
        self.since = time.monotonic()
        """When something was last written."""

    def new_child(self) -> None:
        """Another child begins."""
        self.running, self.ended, self.since = None, False, time.monotonic()

    def follow(self) -> None:
        """Take in the lines that are new, as far as they are whole."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self.read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.read += len(whole) + len(newline)
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # a line that the graded engine has spoilt
                self._take(json.loads(line))
            self.since = time.monotonic()

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "plan" and self.report is None:
            self.report = Report.from_dict(event["report"])
            self.by_test = {entry.test: entry for entry in self.report.entries}
        elif kind == "refused":
            self.report = self.report or Report.from_dict(event["report"])
            self.report.note = event["note"]
        elif kind == "start":
            self.running = event["test"]
        elif kind == "result":
            ended = Entry.from_dict(event["entry"])
            vars(self.by_test[ended.test]).update(status=ended.status, message=ended.message)
            vars(self.by_test[ended.test]).update(looks_like=ended.looks_like, seconds=ended.seconds)
            self.running = None
        elif kind == "end":
            self.ended = True

    @property
    def done(self) -> list[str]:
        """The tests that need not run again."""
        return [test for test, entry in self.by_test.items() if entry.status is not Status.NOT_RUN]

    def blame(self, status: Status, why: str) -> bool:
        """Mark the test that had started last; False if there is none."""
        entry = self.by_test.get(self.running or "")
        if entry is None:
            return False
        entry.status, entry.message = status, f"{entry.code}  {entry.title}\n  {'raised':<9} {why}"
        self.running = None
        return True


class Child:
    """Runs `pytest_arguments` for one engine in `folder`, which it may fill; `root` is the course's."""

    def __init__(self, pytest_arguments: Sequence[str], root: Path, folder: Path, limits: Limits) -> None:
        self.arguments, self.root, self.folder, self.limits = pytest_arguments, root, folder, limits
        self.journal = Journal(folder / "journal.jsonl")
        self.output = Excerpt()
        self.deadline = time.monotonic() + limits.seconds

    def run(self) -> str:
        """Run until all tests are done or the limits are met; returns what happened to the whole, "" if nothing."""
        why = ""
        for _ in range(self.limits.children):
            self.journal.new_child()
            status, why = self._one()
            if not why:
                return ""
            if self.journal.report is not None and self.journal.report.note:
                return ""  # refused: the report says so
            if time.monotonic() > self.deadline:
                self.journal.blame(status, why)
                return f"out of time: {self.limits.seconds:g} s for the whole submission"
            if not self.journal.blame(status, why):
                return f"nothing was graded: {why}" if not self.journal.done else why
            if len(self.journal.done) == len(self.journal.by_test):
                return ""
        return f"given up after {self.limits.children} processes; the last one: {why}"

    def _one(self) -> tuple[Status, str]:
        """Run one child to its end; why it was not a good one, and the status of the test that is to blame."""
        confined = [*namespaces(), sys.executable, "-m", "minfer.course.grader.confine", str(self._memory)]
        command = [*confined, *self._pytest()]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command,
            cwd=self._scratch("cwd"),
            env=self._environment(),
            start_new_session=True,
            **pipes,  # type: ignore[call-overload]
        )
        reader = threading.Thread(target=self.output.follow, args=[process.stdout], daemon=True)
        reader.start()
        try:
            late = self._watch(process)
        finally:
            _kill(process)
            reader.join(GRACE)
        self.journal.follow()
        if late:
            return Status.TIMEOUT, late
        if self.journal.ended and self.journal.running is None:
            return Status.PASSED, ""
        return Status.CRASHED, _how_it_ended(process.returncode, self.journal.ended)

    def _watch(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for the child's end; what it is too late for, else ""."""
        while process.poll() is None:
            time.sleep(POLL)
            self.journal.follow()
            silent = time.monotonic() - self.journal.since
            if time.monotonic() > self.deadline:
                return "the time for the whole submission ended in it"
            if self.journal.running is not None and silent > self.limits.test_seconds + GRACE:
                return f"it was not done after {self.limits.test_seconds:g} s and could not be interrupted"
            if self.journal.running is None and silent > STARTING:
                return f"it takes more than {STARTING} s to load"
        return ""

    @property
    def _memory(self) -> int:
        return int(self.limits.memory_gb * 2**30)

    def _pytest(self) -> list[str]:
        options = ["-p", "no:cacheprovider", "-p", "pytest_timeout", "--capture=no", "--tb=no", "-q", "--no-header"]
        root = ["-c", f"{self.root}/pyproject.toml", f"--rootdir={self.root}", f"--confcutdir={self.root}"]
        skipped = [f"--deselect={test}" for test in self.journal.done]
        limit = f"--timeout={self.limits.test_seconds:g}"
        return [
            sys.executable,
            "-m",
            "pytest",
            *options,
            *root,
            limit,
            f"--journal={self.journal.path}",
            *self.arguments,
            *skipped,
        ]

    def _environment(self) -> dict[str, str]:
        """Nothing of the grader's own: its keys and tokens stay with it."""
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        home, temporary = self._scratch("home"), self._scratch("tmp")
        return kept | {
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "PYTHONPATH": os.pathsep.join([str(self.root), str(MINFER)]),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OMP_NUM_THREADS": "1",
        }

    def _scratch(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the child and all that it has started in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how_it_ended(code: int, ended: bool) -> str:
    if ended:
        return "it ended the test run"
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
        return f"the process was ended by {name}"
    return f"the process ended by itself, with exit code {code}, and left no result"
