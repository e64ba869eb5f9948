"""Report: what one grading found, test by test; written as `minfer.json`, whose form is `report.schema.json`.

All other outputs (table, Gradescope, CSV) are made from it, so none of them can say anything else.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError

SCHEMA = 1
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
BROKEN = 1.0  # points that a broken promise costs
CAME = ("raised", "got", "skipped")  # lines of a screen that say what came, where something else was expected
KINDS = {"test": str, "phase": int, "code": str, "title": str, "points": float, "message": str, "seconds": float}
"""What fields of an `Entry` are, whatever a file says: the engine that is graded may have spoilt it."""
ROUNDING = 6  # digits of a score: shares of points such as 8/17 sum to 100 only up to rounding


class Status(str, Enum):
    """How a test ended; only `PASSED` scores, and only `ABSENT` leaves the total."""

    PASSED = "passed"
    FAILED = "failed"
    TODO = "todo"  # it ended in a NotImplementedError of the task that it checks
    BLOCKED = "blocked"  # what it needs is not there yet
    TIMEOUT = "timeout"
    CRASHED = "crashed"  # it took the process with it
    SKIPPED = "skipped"  # by the engine under test: a test that was not run shows nothing
    NOT_RUN = "not run"
    ABSENT = "n/a"  # this machine lacks what it takes, a GPU

    @property
    def words(self) -> str:
        """As it is written in tables."""
        return "to do" if self is Status.TODO else self.value


@dataclass
class Entry:
    """One test. `points` is what it is worth, `score` what it got."""

    test: str
    """Path::Class::name, as pytest has it; the path is relative to the course's folder."""
    phase: int
    code: str
    title: str
    points: float = 0.0
    task: int | None = None
    needs: tuple[str, ...] = ()
    """Codes without which it shows nothing; of `P4-06/P4-11` one is enough."""
    visible: bool = True
    status: Status = Status.NOT_RUN
    message: str = ""
    """What its author reads; at most one screen."""
    looks_like: tuple[str, ...] = ()
    """The planted mistakes, by their code and name, whose engine gives this output to the last digit."""
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """All or nothing."""
        return self.points if self.status is Status.PASSED else 0.0

    @property
    def needed(self) -> set[str]:
        """All codes that it needs, or one of which it needs."""
        return {code for need in self.needs for code in need.split("/")}

    @property
    def in_brief(self) -> str:
        """What its author reads, in one line: the test, and what came of it."""
        lines = [line.strip().partition(" ") for line in self.message.splitlines()]
        came = next((text.strip() for key, _, text in lines if key in CAME), "")
        return printable(f"{self.code}  {self.title}" + (f": {came}" if came else ""))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "status": self.status.value, "score": self.score}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Entry":
        """The inverse of `as_dict`. Raises `ValueError` or `TypeError` for values that no entry has."""
        known = {f.name: found[f.name] for f in fields(cls) if f.name in found}
        made = {name: kind(known[name]) for name, kind in KINDS.items() if name in known}
        lists = {name: tuple(map(str, known.get(name, ()))) for name in ("needs", "looks_like")}
        return cls(**{**known, **made, **lists, "status": Status(known.get("status", Status.NOT_RUN))})


@dataclass
class Report:
    """A graded engine. `engine` says which: spec, described, sha and, where there is one, file."""

    engine: dict[str, str]
    seed: int
    versions: dict[str, str]
    entries: list[Entry] = field(default_factory=list)
    note: str = ""
    """What happened to the grading as a whole: refused, out of time."""

    @property
    def counted(self) -> list[Entry]:
        """The tests that make the total."""
        return [entry for entry in self.entries if entry.status is not Status.ABSENT]

    @property
    def wrong(self) -> list[Entry]:
        """The tests that show something wrong: not those to be done, blocked or not run.

        By their codes, those of the phase before those of all phases (P0).
        """
        quiet = (Status.PASSED, Status.TODO, Status.BLOCKED, Status.NOT_RUN, Status.ABSENT)
        found = [entry for entry in self.entries if entry.status not in quiet]
        return sorted(found, key=lambda entry: (entry.code.startswith("P0"), entry.code))

    def obstacle(self, entry: Entry) -> str:
        """Why the test is not to be run: what it needs has run and did not pass; empty if nothing speaks against it."""
        for need in entry.needs:
            found = [one for one in self.entries if one.phase == entry.phase and one.code in need.split("/")]
            lacking = [one for one in found if one.status not in (Status.PASSED, Status.NOT_RUN, Status.ABSENT)]
            if lacking and "/" not in need:
                return f"needs {lacking[0].code} ({lacking[0].title}), which did not pass"
            if lacking and len(lacking) == len(found):
                return f"needs one of {need.replace('/', ', ')}, none of which passed"
        return ""

    @property
    def broken(self) -> list[Entry]:
        """Promises that the engine breaks: tests that no task gives points for, and that fail."""
        kept = (Status.PASSED, Status.TODO, Status.BLOCKED, Status.NOT_RUN)
        return [entry for entry in self.counted if not entry.points and entry.status not in kept]

    @property
    def score(self) -> float:
        """The points that were made, less `BROKEN` for each broken promise."""
        made = sum(entry.score for entry in self.counted) - BROKEN * len(self.broken)
        return round(max(0.0, made), ROUNDING)

    @property
    def maximum(self) -> float:
        """The points that could be made."""
        return round(sum(entry.points for entry in self.counted), ROUNDING)

    @property
    def counts(self) -> dict[Status, int]:
        """How many tests ended how, in the order of `Status`."""
        found = Counter(entry.status for entry in self.entries)
        return {status: found[status] for status in Status if found[status]}

    def in_words(self) -> str:
        """The result in one line."""
        counted = ", ".join(f"{number} {status.words}" for status, number in self.counts.items())
        return f"{self.score:g} of {self.maximum:g} points" + (f": {counted}" if counted else "")

    def as_dict(self) -> dict[str, Any]:
        """What `minfer.json` holds."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "seed": self.seed,
            "versions": self.versions,
            "score": self.score,
            "max_score": self.maximum,
            "counts": {status.value: number for status, number in self.counts.items()},
            "note": self.note,
            "tests": [entry.as_dict() for entry in self.entries],
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Report":
        """The inverse of `as_dict`. Raises `ValueError` for another version of the form."""
        if found.get("schema") != SCHEMA:
            raise ValueError(f"schema is {found.get('schema')!r}, this minfer reads {SCHEMA}")
        entries = [Entry.from_dict(entry) for entry in found["tests"]]
        engine = {name: str(value) for name, value in found["engine"].items()}
        return cls(engine, found["seed"], found["versions"], entries, str(found["note"]))


def printable(text: str) -> str:
    """The text, which any file and terminal takes: half a character, of a file's name or an error, is an escape.

    So is what a terminal would obey, not show; lines and tabs are kept.
    """
    shown = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def read_report(path: Path) -> Report:
    """The report in a `minfer.json`. Raises `MinferError` for a file that is none."""
    try:
        return Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MinferError(f"{path} is no report of this minfer ({type(error).__name__}: {error})") from error


def write_json(path: Path, what: Any) -> None:
    """Write it whole or not at all: a reader never finds half a file. Half a character is written as its escape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    text = json.dumps(what, indent=1, ensure_ascii=False)
    beside.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    os.replace(beside, path)
