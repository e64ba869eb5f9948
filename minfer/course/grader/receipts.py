"""Receipts: one failure as a small JSON file that anyone can run again: the engine's source, the test, the seed."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError
from minfer.course.grader.child import Child, Limits
from minfer.course.grader.scratch import scratch
from minfer.course.lessons.exercise import Exercise
from minfer.course.marks.report import Entry, Report, Status, write_json

SCHEMA = 1


@dataclass(frozen=True)
class Receipt:
    """One failed test of one engine. `source` is its file's text; `spec` is how it was named."""

    entry: Entry
    spec: str
    source: str
    seed: int
    versions: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        about = {"seed": self.seed, "versions": self.versions, "spec": self.spec, "source": self.source}
        return {"receipt": SCHEMA, "test": self.entry.as_dict(), **about}

    @classmethod
    def read(cls, path: Path) -> "Receipt":
        """Raises `MinferError` for a file that is none."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            assert found["receipt"] == SCHEMA
            entry = Entry.from_dict(found["test"])
            return cls(entry, found["spec"], found["source"], found["seed"], found["versions"])
        except FileNotFoundError as error:
            raise MinferError(f"there is no file {path}") from error
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise MinferError(
                f"{path} is no receipt: minfer check and minfer grade write one for each failure"
            ) from error

    def replay(self, root: Path, limits: Limits) -> Entry:
        """Run the test again, confined, on the engine in the receipt. Raises `MinferError` if it cannot be run."""
        with scratch("minfer-replay-") as folder:
            where, class_name = split(self.spec)
            engine = folder / where.name
            engine.write_text(self.source, encoding="utf-8")
            Exercise.read(self.entry.phase, root / "phases").give(root / "phases", folder)
            spec = f"{engine}:{class_name}" if class_name else str(engine)
            child = Child(
                [str(root / self.entry.test), f"--engine={spec}", f"--seed={self.seed}"], root, folder, limits
            )
            note = child.run()
            ended = child.journal.by_test.get(self.entry.test)
            if ended is None or ended.status is Status.NOT_RUN:
                report = child.journal.report
                raise MinferError(f"it cannot be run again: {(report and report.note) or note or child.output.text}")
            return ended


def split(spec: str) -> tuple[Path, str]:
    """File and class of FILE[:Class]."""
    where, colon, name = spec.rpartition(":")
    return (Path(where), name) if colon and name.isidentifier() else (Path(spec), "")


def write_receipts(report: Report, folder: Path) -> list[Path]:
    """One file for each failure, by its code; those of an earlier run are removed."""
    for old in folder.glob("P*-*.json"):
        old.unlink()
    source = Path(report.engine.get("file", ""))
    if not source.is_file():
        return []
    text = source.read_text(encoding="utf-8", errors="replace")
    written, seen = [], Counter[str]()
    for entry in report.wrong:
        seen[entry.code] += 1
        name = entry.code if seen[entry.code] == 1 else f"{entry.code}-{seen[entry.code]}"
        class_name = split(report.engine["spec"])[1]
        spec = f"{source}:{class_name}" if class_name else str(source)
        written.append(folder / f"{name}.json")
        write_json(written[-1], Receipt(entry, spec, text, report.seed, report.versions).as_dict())
    return written
