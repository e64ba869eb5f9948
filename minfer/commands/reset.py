"""`minfer reset`: begin a phase again."""

from typing import Annotated

import typer

from minfer.commands.start import print_tasks
from minfer.course.lessons.exercise import Exercise
from minfer.course.lessons.files import course_root
from minfer.course.lessons.work import Work


def reset(phase: Annotated[int, typer.Argument(help="The phase.")]) -> None:
    """Put work/phaseN.py aside and copy the starter again."""
    phases = course_root() / "phases"
    exercise = Exercise.read(phase, phases)
    backup, written = Work().reset(exercise, phases)
    print(f"your file is kept as {backup}")
    print_tasks(exercise, phases, written)
