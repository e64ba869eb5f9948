"""`minfer status`: how far one is."""

from rich.console import Console
from rich.table import Table

from minfer.course.grader.loading import Target
from minfer.course.lessons.exercise import Exercise
from minfer.course.lessons.files import course_root, exercises
from minfer.course.lessons.work import Work
from minfer.course.marks.report import Status


def status() -> None:
    """Show each phase: whether it is started, and what its last check found."""
    root, work = course_root(), Work()
    table = Table("phase", "title", "minutes", "points", "last check")
    for column in (0, 2, 3):
        table.columns[column].justify = "right"
    for phase in exercises(root):
        exercise = Exercise.read(phase, root / "phases")
        points, last = _standing(work, phase)
        table.add_row(str(phase), exercise.title, str(exercise.minutes), points, last)
    Console(highlight=False).print(table)


def _standing(work: Work, phase: int) -> tuple[str, str]:
    """Points and remarks of a phase."""
    file, report = work.file(phase), work.report(phase)
    if report is None:
        return "–", "not checked yet" if file.exists() else f"minfer start {phase}"
    counts = ", ".join(
        f"{number} {status.words}" for status, number in report.counts.items() if status is not Status.PASSED
    )
    changed = file.exists() and Target.parse(str(file)).sha != report.engine["sha"]
    return f"{report.score:g}/{report.maximum:g}", (counts or "all passed") + (" (changed since)" if changed else "")
