"""Work: a student's own folder, `work/`: a file for each phase that was started, and what checking it last found."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from minfer.core.errors import MinferError
from minfer.course.lessons.exercise import Exercise
from minfer.course.marks.report import Report, read_report

FOLDER = "work"
RESULTS = ".results"


@dataclass(frozen=True)
class Work:
    """The folder; it need not exist yet."""

    folder: Path = Path(FOLDER)

    def file(self, phase: int) -> Path:
        """Where the phase's engine is written."""
        return self.folder / f"phase{phase}.py"

    def result(self, phase: int) -> Path:
        """Where the report of the last check is."""
        return self.folder / RESULTS / f"phase{phase}.json"

    def start(self, exercise: Exercise, phases: Path) -> list[Path]:
        """Copy the starter, and what is given. Raises `MinferError` rather than overwrite."""
        there = self.file(exercise.phase)
        if there.exists():
            raise MinferError(f"{there} is there already: minfer reset {exercise.phase} puts it aside and starts again")
        return self._copy(exercise, phases)

    def reset(self, exercise: Exercise, phases: Path) -> tuple[Path, list[Path]]:
        """Put the file aside and copy the starter again; where the old one is, and what was written."""
        old = self.file(exercise.phase)
        if not old.exists():
            raise MinferError(f"there is no {old} to reset: minfer start {exercise.phase}")
        backup = _unused(old)
        old.rename(backup)
        return backup, self._copy(exercise, phases)

    def _copy(self, exercise: Exercise, phases: Path) -> list[Path]:
        starter, *given = exercise.files(phases)
        if not starter.is_file():
            raise MinferError(f"phase {exercise.phase} has no starter: there is no {starter}")
        self.folder.mkdir(parents=True, exist_ok=True)
        targets = [self.file(exercise.phase), *(self.folder / path.name for path in given)]
        for source, target in zip([starter, *given], targets, strict=True):
            shutil.copyfile(source, target)
        return targets

    def report(self, phase: int) -> Report | None:
        """What the last check found; None if there was none."""
        path = self.result(phase)
        return read_report(path) if path.is_file() else None


def _unused(path: Path) -> Path:
    """A name beside it for the time of day, which no file has yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = [f"{path.stem}.{stamp}{more}.bak" for more in ("", *(f"-{n}" for n in range(2, 100)))]
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())
