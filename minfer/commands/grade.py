"""`minfer grade`: many submissions, each in processes of its own."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from minfer.core.errors import OptionsError
from minfer.core.extras import require
from minfer.course.grader import submissions
from minfer.course.grader.child import Limits
from minfer.course.grader.grader import Grader, Watcher
from minfer.course.grader.submissions import Submission
from minfer.course.lessons.files import course_root
from minfer.course.marks.report import Report, Status, printable

DEFAULTS = Limits()
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
WIDTH = 140  # columns in a file or a pipe
COLUMNS = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def grade(
    folder: Annotated[Path, typer.Argument(help="Holds a file or a folder for each submission.")],
    phase: Annotated[int, typer.Option(help="The phase whose tests grade them.")],
    out: Annotated[Path, typer.Option(help="A folder for each submission's minfer.json, results.json, output.")] = Path(
        "graded"
    ),
    csv: Annotated[Path | None, typer.Option(help="One line a submission; default: grades.csv in --out.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many at a time.")] = 1,
    seed: Annotated[
        int, typer.Option(help="Draws sizes, weights and prompts: one that nobody knows, for grading.")
    ] = 17,
    hidden: Annotated[Path | None, typer.Option(help="A folder of more tests, each with its points.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="For one submission.")] = DEFAULTS.seconds,
    test_seconds: Annotated[float, typer.Option(min=0.5, help="For one test.")] = DEFAULTS.test_seconds,
    memory_gb: Annotated[float, typer.Option(min=0.5, help="For one submission.")] = DEFAULTS.memory_gb,
) -> None:
    """Grade all submissions in FOLDER, each confined in processes of its own; results are written as they come."""
    for module in ("pytest", "pytest_timeout"):
        require(module, "course", "grading")
    if hidden is not None and not hidden.is_dir():
        raise OptionsError(f"--hidden {hidden}: there is no such folder")
    found = [one for one in submissions.find(folder) if one.path.resolve() != out.resolve()]
    limits = Limits(seconds, test_seconds, memory_gb)
    out.mkdir(parents=True, exist_ok=True)
    grades = csv or out / "grades.csv"
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)
    progress = Progress(*COLUMNS, console=Console(stderr=True), transient=True)
    display = Display(progress, console, f"phase {phase}", len(found))
    root, secret = course_root(), hidden and hidden.resolve()
    grader = Grader(root, phase, out.resolve(), grades.resolve(), seed, limits, secret, display)
    with progress, ended_like_ctrl_c():
        grader.run(found, jobs)
    console.print(_table(grader))
    console.print(f"{grades}; of each submission: {out}/NAME/minfer.json", markup=False)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """What a job's scheduler, or a terminal that is closed, sends leaves no submission running and no folder either."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Display(Watcher):
    """A bar for all submissions and one for each that is being graded; a line for each that is done."""

    def __init__(self, progress: Progress, console: Console, title: str, count: int) -> None:
        self.progress, self.console = progress, console
        self.all = progress.add_task(title, total=count)
        self.bars: dict[str, TaskID] = {}

    def began(self, submission: Submission) -> None:
        """As `Watcher`."""
        self.bars[submission.name] = self.progress.add_task(f"  {submission.name}", total=None)

    def advanced(self, submission: Submission, done: int, total: int) -> None:
        """As `Watcher`."""
        self.progress.update(self.bars[submission.name], completed=done, total=total or None)

    def ended(self, submission: Submission, report: Report, seconds: float) -> None:
        """As `Watcher`."""
        self.progress.remove_task(self.bars.pop(submission.name))
        self.progress.advance(self.all)
        said = "; ".join(filter(None, (report.in_words() if report.entries else "0 points", report.note)))
        self.console.print(f"{submission.name}: {said} ({seconds:.0f} s)", markup=False)


def _table(grader: Grader) -> Table:
    """A row a submission: its points, how its tests ended, and why."""
    table = Table("submission", "points", "tests", "what happened", "seconds", title=f"phase {grader.phase}")
    table.title_justify = "left"
    for column in (1, 4):
        table.columns[column].justify = "right"
    for name, report in sorted(grader.graded.items()):
        counts = ", ".join(f"{number} {status.words}" for status, number in report.counts.items())
        row = (name, f"{report.score:.3g}", counts, _why(report), f"{grader.seconds[name]:.0f}")
        table.add_row(*map(escape, row))
    return table


def _why(report: Report) -> str:
    """What happened to the whole, what went wrong first, or what is to be done first."""
    wrong = [entry.in_brief for entry in report.wrong]
    todo = [entry.message for entry in report.entries if entry.status is Status.TODO]
    return printable("\n".join(filter(None, [report.note, *(wrong or todo)[:1]])))
