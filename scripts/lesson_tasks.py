"""Put the tasks of each phase into its lesson, as its exercise.toml has them.

    python -m scripts.lesson_tasks

What stands between the two marks of `phases/phaseN/README.md` is made anew; a phase without an exercise says so.
"""

import re
import textwrap
from pathlib import Path

from minfer.course.lessons.exercise import FILE, Exercise

FOLDER = Path(__file__).parents[1] / "phases"
START, END = "<!-- tasks: made by python -m scripts.lesson_tasks, do not edit -->", "<!-- /tasks -->"
MARKED = re.compile(f"{re.escape(START)}\n(.*?){re.escape(END)}", re.DOTALL)
NONE = "\nThe exercise of this phase is not yet there.\n\n"


def block(exercise: Exercise) -> str:
    """Markdown: a heading for each task, what must be true, what to write, what checks it."""
    parts = []
    for task in exercise.tasks:
        names = ", ".join(f"`{name}`" for name in task.write)
        codes = ", ".join(f"{code} ({points:g})" for code, points in task.checks.items())
        heading = f'<a id="task-{task.number}"></a>\n### Task {task.number}: {task.title} ({task.points:g} points)'
        parts.append(f"\n{heading}\n\n{filled(task.goal)}\n\n{filled(f'Write {names}. Checked by {codes}.')}\n")
    given = f" `{exercise.given_module}.py`, beside the starter, has what is given." if exercise.given else ""
    return f"\nAbout {exercise.minutes} minutes.{given}\n{''.join(parts)}\n"


def filled(text: str) -> str:
    """In lines of at most 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def current(lesson: Path) -> str:
    """What stands between the marks now."""
    found = MARKED.search(lesson.read_text(encoding="utf-8"))
    assert found, f"{lesson} has no marks for its tasks"
    return found[1]


def main() -> None:
    """Rewrite all lessons."""
    for lesson in FOLDER.glob("phase*/README.md"):
        number = int(lesson.parent.name[5:])
        made = block(Exercise.read(number, FOLDER)) if (lesson.parent / FILE).exists() else NONE
        text = lesson.read_text(encoding="utf-8")
        lesson.write_text(MARKED.sub(lambda _, made=made: f"{START}\n{made}{END}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
