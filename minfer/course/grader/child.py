"""Child: grade one engine in processes of its own, whatever it does to them.

The child writes a journal, which the parent reads as it grows. A child that is gone before its journal's end, or that
does not come back from a test, has crashed or hung in the test that had started last; that test is marked so, and
another child goes on behind it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import minfer
from minfer.course.grader.confine import children_of, namespaces
from minfer.course.grader.excerpt import Excerpt
from minfer.course.grader.journal import Journal
from minfer.course.grader.submissions import FULL
from minfer.course.marks.report import Status

MINFER = Path(minfer.__file__).parents[1]
POLL = 0.05  # seconds
STARTING = 120  # seconds from a child's start to its first test, from one to the next, or to try planted mistakes
GRACE = 5  # seconds for a test to end after its own time limit should have ended it
PASSED_ON = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "SYSTEMROOT")


@dataclass(frozen=True)
class Limits:
    """What one submission may take."""

    seconds: float = 300.0
    test_seconds: float = 30.0
    memory_gb: float = 4.0
    losses: int = 6
    """How many tests may crash or not end; then the rest is not run."""


class Child:
    """Runs `pytest_arguments` for one engine in `folder`, which it may fill; `root` is the course's.

    `advanced(done, total)` is told, again and again, how many of the tests are done.
    """

    def __init__(
        self,
        pytest_arguments: Sequence[str],
        root: Path,
        folder: Path,
        limits: Limits,
        advanced: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.arguments, self.root, self.folder, self.limits = pytest_arguments, root, folder, limits
        self.advanced = advanced
        self.journal = Journal(folder / "journal.jsonl", limits.losses)
        self.output = Excerpt()
        self.deadline = time.monotonic() + limits.seconds

    def run(self) -> str:
        """Run until all tests are done or the limits are met; returns what happened to the whole, "" if nothing."""
        try:
            return self._run()
        finally:
            self.journal.close()

    def _run(self) -> str:
        while True:
            try:
                status, why = self._one()
            except OSError as error:
                if error.errno in FULL:
                    raise
                return f"given up: its folder cannot be made again ({error.strerror}: {error.filename})"
            if not why or (self.journal.report is not None and self.journal.report.note):
                return ""  # all are done; or it was refused, as the report says
            is_explained = self.journal.blame(status, why) or self.journal.is_given_up
            self.journal.block()
            if time.monotonic() > self.deadline:
                return f"out of time: {self.limits.seconds:g} s for the whole submission"
            if not is_explained:
                return why if self.journal.done else f"nothing was graded: {why}"
            if len(self.journal.done) == len(self.journal.by_test):
                return ""
            if self.journal.is_given_up:
                count = len(self.journal.lost)
                return f"given up after {count} {'test' if count == 1 else 'tests'} that crashed or did not end"

    def _one(self) -> tuple[Status, str]:
        """Run one child to its end; why it was not a good one, and the status of the test that is to blame."""
        cwd, environment = self._scratch("cwd"), self._environment()
        self.journal.new_child()
        confined = [*namespaces(), sys.executable, "-m", "minfer.course.grader.confine", str(self._memory)]
        command = [*confined, *self._pytest()]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
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
            self.advanced(len(self.journal.done), len(self.journal.by_test))
            silent = time.monotonic() - self.journal.since
            if time.monotonic() > self.deadline:
                return "the time for the whole submission ended in it"
            if self.journal.is_given_up:
                return "enough is known"
            if self.journal.ended and silent > GRACE:
                return ""  # all is known, but a thread or an exit handler keeps the process
            is_tested = self.journal.running is not None and not self.journal.is_over
            if is_tested and silent > self.limits.test_seconds + GRACE:
                return f"it was not done after {self.limits.test_seconds:g} s and could not be interrupted"
            if silent > STARTING and not is_tested:
                return f"nothing came of it for {STARTING} s"
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
        """A folder for the child: whatever an earlier one has put in its place is out of the way."""
        path = self.folder / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        path.mkdir(parents=True, exist_ok=True)
        return path


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the child and all that it has started: in its group, and in its namespace, if it has one.

    A namespace's first process takes all others with it. It is ended by its number: it may have left the group, and
    may have told the system not to end it with its parent.
    """
    for pid in children_of(process.pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
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
