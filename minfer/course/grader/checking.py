"""Checking: grade one engine in this process, with the tests that its graders use: `check(Engine)` in a notebook."""

import html
import io
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from minfer.core.errors import MinferError
from minfer.core.extras import require
from minfer.course.lessons.files import course_root
from minfer.course.marks import table
from minfer.course.marks.report import Report, read_report
from minfer.course.source.outline import PHASE

SEED = 17
NEEDLESS = ("cacheprovider", "unraisableexception", "threadexception")
PLUGINS = ("--disable-plugin-autoload", "-ppytest_timeout", *(f"-pno:{name}" for name in NEEDLESS))
"""What pytest is to do without: others that are installed, which may take longer to import than the tests to run."""


class Ticker:
    """A pytest plugin that shows how far the tests are."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("loading", total=None)

    def pytest_collection_finish(self, session: Any) -> None:
        """So many there are."""
        self.progress.update(self.task, total=len(session.items), description="checking")

    def pytest_runtest_logfinish(self) -> None:
        """One more is done."""
        self.progress.advance(self.task)


def run_tests(phase: int, root: Path, arguments: Sequence[str], plugins: Sequence[object] = ()) -> Report:
    """Run the phase's tests in this process and return what they found. Raises `MinferError` if nothing was graded."""
    pytest = require("pytest", "course", "checking an engine")
    console = Console(file=sys.stderr)  # that of now: pytest's own words go elsewhere
    with tempfile.TemporaryDirectory() as folder, _progress(console) as progress:
        report = Path(folder) / "minfer.json"
        where = [f"{root}/tests/phase{phase}", f"--rootdir={root}", f"--config-file={root}/pyproject.toml"]
        said = io.StringIO()
        with redirect_stderr(said), redirect_stdout(said):
            pytest.main([*where, *PLUGINS, f"--report={report}", *arguments], plugins=[Ticker(progress), *plugins])
        if not report.is_file():
            raise MinferError(
                f"the tests of phase {phase} could not be run: {said.getvalue().strip() or 'no test ran'}"
            )
        found = read_report(report)
    if not found.entries or found.note:
        raise MinferError(found.note or f"phase {phase} has no such tests")
    return found


def _progress(console: Console) -> Progress:
    """A bar that leaves nothing behind; a file or a pipe gets none."""
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def check(engine: type, phase: int | None = None, seed: int = SEED) -> "Checked":
    """Grade a class, as defined in a notebook's cell, with the tests of `phase`; show and return what they found.

    Without `phase` it is the one after the phase that the class builds on. Raises `MinferError` for a class that
    inherits from the answer.
    """
    graded = phase or next_phase(engine)
    base = built_on(engine)
    if base >= graded:
        raise MinferError(f"{engine.__name__} inherits from minfer.phase{base}, the answer to phase {graded}")
    from minfer.course.grader.grading import Graded

    report = run_tests(graded, course_root(), [f"--seed={seed}"], [Graded(engine, asks_suspects=True)])
    checked = Checked(report, course_root() / "phases")
    if "ipykernel" not in sys.modules:  # a notebook shows what a cell returns
        print(checked)
    return checked


class Checked:
    """A report that shows itself: the points, and the first thing to look at."""

    def __init__(self, report: Report, phases: Path) -> None:
        self.report, self.phases = report, phases

    def __repr__(self) -> str:
        return "\n".join([*self.screens()[:1], table.text(self.report, self.phases)])

    def _repr_html_(self) -> str:
        """The same for a notebook, whose own way with text would break the table's lines."""
        return f'<pre style="white-space: pre; overflow-x: auto">{html.escape(repr(self))}</pre>'

    def screens(self) -> list[str]:
        """What there is to read about each test that went wrong."""
        return [f"{entry.message}\n" for entry in self.report.wrong]


def built_on(engine: type) -> int:
    """The latest phase that the class inherits from, 0 if none."""
    matches = (PHASE.match(ancestor.__module__) for ancestor in engine.__mro__)
    return max((int(match[1]) for match in matches if match), default=0)


def next_phase(engine: type) -> int:
    """The phase that an engine implements: the one after those it inherits from."""
    return built_on(engine) + 1
