"""`minfer check`: grade one's own engine, as often as one likes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minfer.core.errors import MinferError
from minfer.course.grader.checking import SEED, run_tests
from minfer.course.grader.receipts import write_receipts
from minfer.course.lessons.exercise import Exercise
from minfer.course.lessons.files import course_root
from minfer.course.lessons.work import Work
from minfer.course.marks import table
from minfer.course.marks.outputs import write_report
from minfer.course.marks.report import Report, Status


def check(
    phase: Annotated[int, typer.Argument(help="The phase.")],
    engine: Annotated[
        str | None, typer.Argument(help="FILE.py[:Class], NOTEBOOK.ipynb[:Class] or a folder; default: work/phaseN.py.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every failure, not only the first.")] = False,
    seed: Annotated[int, typer.Option(help="Draws sizes, weights and prompts.")] = SEED,
) -> None:
    """Grade work/phaseN.py, or another engine, with the tests that its graders use."""
    root, work = course_root(), Work()
    exercise = Exercise.read(phase, root / "phases")
    spec = engine or str(work.file(phase))
    if not engine and not work.file(phase).exists():
        raise MinferError(f"there is no {spec}: minfer start {phase}")
    report = run_tests(phase, root, [f"--engine={spec}", f"--seed={seed}"])
    result = work.result(phase)
    write_report(result, report)
    receipts = write_receipts(report, result.with_suffix(""))
    _print(report, exercise, root / "phases", every)
    if receipts:
        print(f"again: minfer replay {receipts[0]}" + (f" (and {len(receipts) - 1} beside it)" if receipts[1:] else ""))


def _print(report: Report, exercise: Exercise, phases: Path, every: bool) -> None:
    """The first failure or all, the table, and what to do next."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    failures = report.wrong
    for entry in failures if every else failures[:1]:
        console.print(f"{entry.message}\n  {'more':<9} minfer explain {entry.code}\n")
    if failures[1:] and not every:
        console.print(f"{len(failures) - 1} more failed: --all shows them\n")
    console.print(report.engine["described"])
    print(table.text(report, phases), end="")
    todo = [entry.task for entry in report.entries if entry.status is Status.TODO and entry.task]
    if todo and not failures:
        task = exercise.tasks[min(todo) - 1]
        console.print(
            f"next: task {task.number}, {task.title}: {task.goal} (minfer hint {exercise.phase} {task.number})"
        )
