"""Outputs: the files that a grading leaves: minfer.json, Gradescope's results.json, a CSV, and a journal."""

import csv
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from minfer.course.marks.report import Entry, Report, Status, write_json

CSV_COLUMNS = ("test", "phase", "task", "code", "title", "status", "score", "points", "seconds", "looks_like")


@dataclass
class Outputs:
    """Where to write what; each result is written as it comes, so that what ends the run early loses no other."""

    files: Sequence[tuple[Path, Callable[[Path, Report], None]]] = ()
    journal: Path | None = None
    report: Report | None = None
    stream: TextIO | None = field(default=None, repr=False)
    pid: int = field(default_factory=os.getpid)
    """Of the process that grades. A copy of it, which the engine has forked and let return, writes nothing."""

    def planned(self, report: Report) -> None:
        """The tests are known."""
        self.report = report
        self._note("plan", report=report.as_dict())
        self._write(report)

    def started(self, test: str) -> None:
        """A test begins."""
        self._note("start", test=test)

    def asked(self, test: str) -> None:
        """The test is over; planted mistakes are tried on what it found."""
        self._note("ask", test=test)

    def ended(self, entry: Entry) -> None:
        """A test has ended."""
        self._note("result", entry=entry.as_dict())
        if self.report is not None:
            self._write(self.report)

    def finish(self, report: Report) -> None:
        """The run ends by itself."""
        self._note("end")
        self._write(report)

    def refused(self, report: Report) -> None:
        """The engine was refused before any test."""
        self._note("refused", note=report.note, report=report.as_dict())
        self._write(report)

    def _write(self, report: Report) -> None:
        if os.getpid() != self.pid:
            return
        for path, write in self.files:
            write(path, report)

    def _note(self, event: str, **about: Any) -> None:
        if self.journal is None or os.getpid() != self.pid:
            return
        if self.stream is None:
            self.stream = open(self.journal, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the run)
        self.stream.write(json.dumps({"event": event, **about}) + "\n")
        self.stream.flush()


def write_report(path: Path, report: Report) -> None:
    """`minfer.json`: see report.schema.json."""
    write_json(path, report.as_dict())


def write_gradescope(path: Path, report: Report) -> None:
    """`results.json`, https://gradescope-autograders.readthedocs.io/en/latest/specs/ ."""
    write_json(path, gradescope(report))


def gradescope(report: Report) -> dict[str, Any]:
    """What Gradescope shows: hidden tests after the deadline, and no command that would tell a secret seed."""
    tests = [
        {
            "name": f"{entry.code} {entry.title}",
            "number": f"{entry.phase}.{entry.task or 0}",
            "score": entry.score,
            "max_score": entry.points,
            "status": "passed" if entry.status is Status.PASSED else "failed",
            "output": entry.message or entry.status.words,
            "output_format": "text",
            "visibility": "visible" if entry.visible else "after_published",
        }
        for entry in report.counted
    ]
    said = f"{report.engine['described']}\n{report.note or report.in_words()}"
    return {
        "score": report.score,
        "output": said,
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def write_csv(path: Path, report: Report) -> None:
    """One line a test."""
    with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        rows = csv.DictWriter(file, CSV_COLUMNS, extrasaction="ignore")
        rows.writeheader()
        for entry in report.entries:
            rows.writerow({**entry.as_dict(), "looks_like": "; ".join(entry.looks_like)})
