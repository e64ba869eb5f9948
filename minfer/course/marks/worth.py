"""Worth: what each test counts for: its code, points and task by `exercise.toml`, its needs by its marker."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError
from minfer.course.lessons.exercise import Exercise
from minfer.course.marks.report import Entry

CODE = re.compile(r"test_(P\d+_\d+)_(\w+)")


@lru_cache
def exercise(phase: int, folder: Path) -> Exercise | None:
    """The phase's exercise, None where there is none yet."""
    return Exercise.read(phase, folder) if (folder / f"phase{phase}" / "exercise.toml").is_file() else None


def code_and_title(name: str) -> tuple[str, str]:
    """("P3-06", "a second call starts …") of `test_P3_06_a_second_call_starts_…`; the name where it has no code."""
    match = CODE.match(name)
    return (match[1].replace("_", "-"), match[2].replace("_", " ")) if match else (name, name.replace("_", " "))


def entries(items: Sequence[tuple[Any, int]], phases: Path, hidden: Path | None) -> list[Entry]:
    """An entry for each of (pytest item, phase). Raises `MinferError` for a hidden test without points."""
    made = [_entry(item, phase, phases, hidden) for item, phase in items]
    sharing = Counter((entry.phase, _scored(entry, item, phases)) for entry, (item, _) in zip(made, items, strict=True))
    for entry, (item, _) in zip(made, items, strict=True):
        code = _scored(entry, item, phases)
        if code is not None:
            entry.points /= sharing[entry.phase, code]
    return made


def _scored(entry: Entry, item: Any, phases: Path) -> str | None:
    """The code of the exercise whose points the test shares."""
    found = exercise(entry.phase, phases)
    return found.code_of(item.name) if found and entry.visible else None


def _entry(item: Any, phase: int, phases: Path, hidden: Path | None) -> Entry:
    code, title = code_and_title(getattr(item, "originalname", None) or item.name)
    entry = Entry(item.nodeid, phase, code, title, needs=needs_of(item))
    found = exercise(phase, phases)
    if hidden is not None and item.path.is_relative_to(hidden):
        entry.visible, entry.points = False, _marked_points(item)
    elif found and (task := found.task_of(item.name)):
        entry.task, entry.points = task.number, task.checks[found.code_of(item.name)]  # type: ignore[index]
    return entry


def needs_of(item: Any) -> tuple[str, ...]:
    """What its markers name: codes, or several with a stroke between them, of which one is enough."""
    found: list[str] = []
    for marker in item.iter_markers("points"):
        needs = marker.kwargs.get("needs") or ()
        found += [needs] if isinstance(needs, str) else needs
    return tuple(dict.fromkeys(found))


def _marked_points(item: Any) -> float:
    marker = item.get_closest_marker("points")
    if marker is None or not marker.args:
        raise MinferError(f"the hidden test {item.nodeid} says not what it is worth: @pytest.mark.points(5), say")
    return float(marker.args[0])


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Each after those that it needs, else as they were. Raises `MinferError` for needs that go round in a circle."""
    waiting, ordered = list(entries), []
    while waiting:
        codes = {entry.code for entry in waiting}
        ready = [entry for entry in waiting if not codes & entry.needed - {entry.code}]
        if not ready:
            raise MinferError(f"tests that need each other: {', '.join(sorted(codes))}")
        ordered += ready
        waiting = [entry for entry in waiting if entry not in ready]
    return ordered
