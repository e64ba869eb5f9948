"""Sync: everything in `phases/` that is made from the phases: starters and diff pages, as Markdown and as HTML."""

import re
from pathlib import Path

from minfer.course.lectures import diff_text
from minfer.course.lectures.diff import PhaseDiff
from minfer.course.lectures.diff_page import page
from minfer.course.lessons.exercise import FILE, Exercise
from minfer.course.lessons.starter import Starter
from minfer.course.source.library import phases
from minfer.course.source.lineage import previous

GIVEN = re.compile(r"phase\d+_given\.py")


def generated(folder: Path) -> dict[Path, str]:
    """Every file that is made -> its text; a phase without `exercise.toml` has no starter. Raises `MinferError`."""
    made: dict[Path, str] = {}
    for phase in phases():
        own = folder / f"phase{phase}"
        if (own / FILE).is_file():
            starter = Starter(Exercise.read(phase, folder))
            made |= {own / name: text for name, text in starter.files().items()}
        diff = PhaseDiff.of(previous(phase), phase)
        made |= {own / "DIFF.md": diff_text.markdown(diff), own / "diff.html": page(diff)}
    return made


def stale(folder: Path) -> list[Path]:
    """Files that are not what they would be made now: changed, absent, or no longer made."""
    wanted = generated(folder)
    changed = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return sorted([*changed, *_leftover(folder, wanted)])


def write(folder: Path) -> list[Path]:
    """Make them all anew; returns those that have changed."""
    wanted, changed = generated(folder), stale(folder)
    for path in changed:
        if path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


def _leftover(folder: Path, wanted: dict[Path, str]) -> list[Path]:
    """What was made once and is not any more."""
    return [path for path in folder.glob("phase*/phase*_given.py") if path not in wanted and GIVEN.fullmatch(path.name)]
