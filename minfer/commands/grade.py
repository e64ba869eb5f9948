"""`minfer grade`: many submissions, each in processes of its own."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from minfer.core.errors import OptionsError
from minfer.core.extras import require
from minfer.course.grader import submissions
from minfer.course.grader.child import Limits
from minfer.course.grader.grader import Grader
from minfer.course.grader.submissions import Submission
from minfer.course.lessons.files import course_root
from minfer.course.marks.report import Report

DEFAULTS = Limits()


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
    found = submissions.find(folder)
    limits = Limits(seconds, test_seconds, memory_gb)
    out.mkdir(parents=True, exist_ok=True)
    grades = csv or out / "grades.csv"
    grader = Grader(course_root(), phase, out.resolve(), grades.resolve(), seed, limits, hidden and hidden.resolve())
    console = Console(highlight=False, soft_wrap=True)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"phase {phase}", total=len(found))

        def ended(submission: Submission, report: Report) -> None:
            progress.advance(task)
            console.print(f"{submission.name}: {report.note or report.in_words()}", markup=False)

        grader.run(found, jobs, ended)
    console.print(_table(grader))
    console.print(f"{grades}; of each submission: {out}/NAME/minfer.json", markup=False)


def _table(grader: Grader) -> Table:
    table = Table("submission", "points", "tests", title=f"phase {grader.phase}", title_justify="left")
    for name, report in sorted(grader.graded.items()):
        counts = ", ".join(f"{number} {status.words}" for status, number in report.counts.items())
        table.add_row(name, f"{report.score:.3g}", "; ".join(part for part in (report.note, counts) if part))
    return table
