"""`minfer start`: begin a phase."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minfer.course.lessons.exercise import Exercise
from minfer.course.lessons.files import course_root
from minfer.course.lessons.work import Work


def start(phase: Annotated[int, typer.Argument(help="The phase.")]) -> None:
    """Copy a phase's starter to work/phaseN.py, and say what is to be done."""
    phases = course_root() / "phases"
    exercise = Exercise.read(phase, phases)
    written = Work().start(exercise, phases)
    print_tasks(exercise, phases, written)


def print_tasks(exercise: Exercise, phases: Path, written: list[Path]) -> None:
    """Where to write, where to read, what to do."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"phase {exercise.phase}, {exercise.title}, about {exercise.minutes} minutes: {', '.join(map(str, written))}"
    )
    lesson = phases / f"phase{exercise.phase}" / "README.md"
    if lesson.is_file():
        console.print(f"lesson: {lesson}")
    for task in exercise.tasks:
        console.print(f"  task {task.number}  {task.title} ({task.points:g} points): {', '.join(task.write)}")
        console.print(f"          {task.goal}")
    console.print(f"then: minfer check {exercise.phase}, minfer hint {exercise.phase} 1")
