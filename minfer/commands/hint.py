"""`minfer hint`: help with a task, in three steps."""

from typing import Annotated

import typer
from rich.console import Console

from minfer.core.errors import OptionsError
from minfer.course.lessons.exercise import HINTS, Exercise
from minfer.course.lessons.files import course_root


def hint(
    phase: Annotated[int, typer.Argument(help="The phase.")],
    task: Annotated[int, typer.Argument(help="The task.")],
    level: Annotated[
        int, typer.Option(min=1, max=HINTS, help="1: where to look; 2: the idea; 3: all but the code.")
    ] = 1,
) -> None:
    """Show a hint for a task; each level says more."""
    exercise = Exercise.read(phase, course_root() / "phases")
    if not 1 <= task <= len(exercise.tasks):
        raise OptionsError(f"phase {phase} has no task {task}: choose one of 1 to {len(exercise.tasks)}")
    found = exercise.tasks[task - 1]
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"task {task}, {found.title}: {found.goal}")
    console.print(f"hint {level} of {HINTS}: {found.hints[level - 1]}")
    if level < HINTS:
        console.print(f"more: minfer hint {phase} {task} --level {level + 1}")
