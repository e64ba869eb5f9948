"""The table of a report: points by task, and what each of its tests came to."""

import io
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from minfer.course.marks import worth
from minfer.course.marks.report import BROKEN, Entry, Report, Status

WIDTH = 110


def text(report: Report, phases: Path) -> str:
    """As text, for a terminal or a file."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, force_terminal=False, force_jupyter=False)  # plain text
    console.print(rich(report, phases))
    for line in remarks(report):
        console.print(line, markup=False, soft_wrap=True)
    return out.getvalue()


def rich(report: Report, phases: Path) -> Table:
    """A row a task."""
    table = Table("task", "points", "tests", title=report.in_words(), title_justify="left", title_style="bold")
    table.columns[1].justify = "right"
    ordered = sorted(report.entries, key=lambda entry: (entry.phase, not entry.visible, entry.task or 0))
    for (phase, task, visible), group in groupby(ordered, key=lambda e: (e.phase, e.task, e.visible)):
        entries = list(group)
        made, of = (round(sum(points), 2) for points in zip(*((e.score, e.points) for e in entries), strict=True))
        table.add_row(_title(phase, task, visible, phases), f"{made:g}/{of:g}", _outcomes(entries))
    return table


def _title(phase: int, task: int | None, visible: bool, phases: Path) -> str:
    if not visible:
        return f"phase {phase}, hidden tests"
    exercise = worth.exercise(phase, phases)
    if exercise is None or task is None:
        return f"phase {phase}"
    return f"P{phase} task {task}: {exercise.tasks[task - 1].title}"


def _outcomes(entries: list[Entry]) -> str:
    """ "passed 5; failed P3-01, P3-02; to do P3-06"."""
    parts = []
    for status in Status:
        codes = [entry.code for entry in entries if entry.status is status]
        if codes:
            shown = f"{len(codes)}" if status is Status.PASSED else ", ".join(codes)
            parts.append(f"{status.words} {shown}")
    return "; ".join(parts)


def remarks(report: Report) -> list[str]:
    """What there is to say below the table."""
    lines = [report.note] if report.note else []
    if report.broken:
        codes = ", ".join(dict.fromkeys(entry.code for entry in report.broken))
        lines.append(f"{codes}: a promise that gives no points is broken; each such test costs {BROKEN:g}")
    todo = [entry for entry in report.entries if entry.status is Status.TODO]
    lines += dict.fromkeys(entry.message.splitlines()[0] for entry in todo)
    if report.entries and all(entry.status is Status.PASSED for entry in report.counted):
        lines.append(f"all checks with seed {report.seed} pass; whoever grades repeats them with another seed")
    return lines
