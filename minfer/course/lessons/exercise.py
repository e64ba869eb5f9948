"""Exercise: what a phase asks of a student, read from `phases/phaseN/exercise.toml`.

The file, all of whose keys are required but `given`:

    title = "KV cache"            what the phase is called
    minutes = 60                  how long it takes whoever has read the lesson
    given = true                  give what no task is in, and nothing of a task is needed for, in a file of its own

    [[task]]                      2 to 5 of them, in the order to do them; the first is task 1
    title = "Room for one"        a few words
    goal = "…"                    one or two sentences: what must be true afterwards
    write = ["KVCache.reserve"]   what the student writes: methods as "Class.method", functions by name
    checks = { P3-06 = 10 }       code -> points
    hints = ["…", "…", "…"]       three: where to look, the idea, all but the code

A code belongs to the tests whose names begin so: P3-06 to `test_P3_06_…`, and P0, the contract of all phases, to every
`test_P0_…`. Tests of one code share its points equally. A code of no points is a promise that the engine keeps beside
its tasks: each of its tests that fails costs a point (`Report.broken`). Each test of `tests/phaseN` has exactly one
task: that with the longest code that fits. The points of all tasks sum to 100.

The starter is `phases/phaseN/exercise.py`, and with `given` `phases/phaseN/phaseN_given.py`: whoever
copies the one copies the other beside it, under its own name (`Exercise.files`). In the starter each body in `write`
is `raise NotImplementedError("P3 task 1: …")`, so a check that ends with the to-do of another task than its own is
blocked by that task.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE, STARTER = "exercise.toml", "exercise.py"
TOTAL = 100
HINTS = 3


@dataclass(frozen=True)
class Task:
    """One thing to write, and what checks it."""

    number: int
    title: str
    goal: str
    write: tuple[str, ...]
    checks: dict[str, float]
    hints: tuple[str, ...]

    @property
    def points(self) -> float:
        """What all of its checks are worth."""
        return sum(self.checks.values())


@dataclass(frozen=True)
class Exercise:
    """The tasks of a phase, in the order to do them."""

    phase: int
    title: str
    minutes: int
    tasks: tuple[Task, ...]
    given: bool = False

    @classmethod
    def read(cls, phase: int, folder: Path) -> "Exercise":
        """That of `folder/phaseN/exercise.toml`. Raises `MinferError` for a file that is absent or not as above."""
        path = folder / f"phase{phase}" / FILE
        if not path.is_file():
            raise MinferError(f"phase {phase} has no exercise: there is no {path}")
        found = read_toml(path)
        try:
            tasks = tuple(_task(number, about) for number, about in enumerate(found.pop("task"), 1))
            exercise = cls(phase, tasks=tasks, **found)
        except (KeyError, TypeError) as error:
            raise MinferError(f"{path}: a key is absent or unknown: {error}") from error
        exercise.check(path)
        return exercise

    def check(self, path: Path) -> None:
        """Raise `MinferError` if points do not sum to 100, hints are not three, or a code or a name comes twice."""
        points = sum(task.points for task in self.tasks)
        if abs(points - TOTAL) > 1e-9:
            raise MinferError(f"{path}: the tasks' points sum to {points:g}, not to {TOTAL}")
        for task in self.tasks:
            if len(task.hints) != HINTS:
                raise MinferError(f"{path}: task {task.number} has {len(task.hints)} hints, not {HINTS}")
        for what in (self.codes, [name for task in self.tasks for name in task.write]):
            twice = sorted({item for item in what if what.count(item) > 1})
            if twice:
                raise MinferError(f"{path}: in two tasks: {', '.join(twice)}")

    def files(self, phases: Path) -> list[Path]:
        """What a student copies: the starter, and beside it, under its own name, what is given."""
        own = phases / f"phase{self.phase}"
        return [own / STARTER, *([own / f"{self.given_module}.py"] if self.given else [])]

    def give(self, phases: Path, folder: Path) -> None:
        """Copy what is given into the folder of an engine that came without it."""
        for source in self.files(phases)[1:]:
            if not (folder / source.name).exists():
                shutil.copyfile(source, folder / source.name)

    @property
    def given_module(self) -> str:
        """The module of what is given; the starter imports it from the folder that both are in."""
        return f"phase{self.phase}_given"

    @property
    def codes(self) -> list[str]:
        """The codes of all tasks."""
        return [code for task in self.tasks for code in task.checks]

    def code_of(self, test: str) -> str | None:
        """The code that the test of that name (`test_P3_06_…`) counts for: the longest that fits; None: none does."""
        name = test.replace("_", "-") + "-"
        fitting = [code for code in self.codes if name.startswith(f"test-{code}-")]
        return max(fitting, key=len, default=None)

    def task_of(self, test: str) -> Task | None:
        """The task that the test of that name checks."""
        code = self.code_of(test)
        return next((task for task in self.tasks if code in task.checks), None)


def read_toml(path: Path) -> dict[str, Any]:
    """What the file says. Raises `MinferError` if it is absent or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MinferError(f"there is no file {path}") from error
    except tomllib.TOMLDecodeError as error:
        raise MinferError(f"{path}: {error}") from error


def _task(number: int, about: dict[str, Any]) -> Task:
    about = about | {key: tuple(about[key]) for key in ("write", "hints")}
    return Task(number=number, **about)
