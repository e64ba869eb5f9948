"""Grader: many submissions, each in processes of its own; results are written as they come."""

import csv
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from minfer.core.errors import MinferError
from minfer.course.grader.child import Child, Limits
from minfer.course.grader.receipts import write_receipts
from minfer.course.grader.scratch import scratch
from minfer.course.grader.submissions import Submission, Unusable
from minfer.course.lessons.exercise import Exercise
from minfer.course.lessons.files import fingerprint
from minfer.course.marks.outputs import gradescope
from minfer.course.marks.report import Report, Status, printable, write_json

COLUMNS = ("submission", "score", "max_score", "file", "sha", "note", "first_failure", "seconds")


class Tampered(MinferError):
    """The course's own files are not what they were when the grading began."""


class Interrupted(Exception):
    """The grading ends early: what is being graded is given up."""


class Watcher:
    """Is told how the grading goes: of a submission that begins or advances by the thread that grades it."""

    def began(self, submission: Submission) -> None:
        """Its turn has come."""

    def advanced(self, submission: Submission, done: int, total: int) -> None:
        """So many of its tests are done."""

    def ended(self, submission: Submission, report: Report, seconds: float) -> None:
        """Its results are written."""


@dataclass
class Grader:
    """Grades submissions as `phase` with the course in `root`; each gets a folder in `out`.

    `graded` and `seconds` are by the submission's name: what was found, and how long finding it took.
    """

    root: Path
    phase: int
    out: Path
    csv: Path
    seed: int
    limits: Limits = field(default_factory=Limits)
    hidden: Path | None = None
    watcher: Watcher = field(default_factory=Watcher)
    graded: dict[str, Report] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exercise = Exercise.read(self.phase, self.root / "phases")
        self.fingerprint = fingerprint(self.root)
        self.is_ending = False

    def run(self, submissions: Sequence[Submission], jobs: int) -> None:
        """Grade them all, `jobs` at a time. Raises `Tampered`: then no result can be trusted; `MinferError` if one's
        folder cannot be made."""
        self._refuse_what_is_in_the_way(submissions)
        with ThreadPoolExecutor(jobs) as pool:
            waiting = {pool.submit(self.grade, submission): submission for submission in submissions}
            try:
                for done in as_completed(waiting):
                    submission, report = waiting[done], done.result()
                    self._refuse_tampering(submission)
                    self._write(submission, report)
                    self.watcher.ended(submission, report, self.seconds[submission.name])
            except BaseException:
                self.is_ending = True
                pool.shutdown(cancel_futures=True)
                raise

    def grade(self, submission: Submission) -> Report:
        """One submission's report; whatever the submission does, there is one."""
        self.watcher.began(submission)
        since = time.monotonic()
        try:
            report = self._grade(submission)
            report.note = printable(report.note)
            return report
        finally:
            self.seconds[submission.name] = time.monotonic() - since

    def _grade(self, submission: Submission) -> Report:
        with scratch("minfer-grade-") as folder:
            try:
                engine = submission.engine(self.phase)
                copy = submission.copy(_inside(folder, "submission"))
            except Unusable as error:
                return self._nothing(submission, f"nothing was graded: {error}")
            copied = copy / engine.relative_to(submission.path) if copy.is_dir() else copy
            self.exercise.give(self.root / "phases", copied.parent)
            told = partial(self._advanced, submission)
            child = Child(self._arguments(copied), self.root, _inside(folder, "child"), self.limits, told)
            note = child.run()
            report = child.journal.report or self._nothing(submission, note)
            report.note = report.note or note
            _rename(report, str(copied), str(engine))
            self._note_output(submission, child.output.text)
            return report

    def _advanced(self, submission: Submission, done: int, total: int) -> None:
        if self.is_ending:
            raise Interrupted
        self.watcher.advanced(submission, done, total)

    def _arguments(self, engine: Path) -> list[str]:
        more = [f"--hidden={self.hidden}"] if self.hidden else []
        return [f"{self.root}/tests/phase{self.phase}", f"--engine={engine}", f"--seed={self.seed}", *more]

    def _nothing(self, submission: Submission, note: str) -> Report:
        path = str(submission.path)
        return Report({"spec": path, "described": path, "sha": ""}, self.seed, {}, note=note)

    def _refuse_what_is_in_the_way(self, submissions: Sequence[Submission]) -> None:
        """Of a submission's folder, whose name is the student's choice."""
        for submission in submissions:
            folder = self.out / submission.name
            if folder in (self.csv, _beside(self.csv)):
                raise MinferError(f"the submission {submission.name} is named like the file of all grades, {self.csv}")
            if os.path.lexists(folder) and not folder.is_dir():
                raise MinferError(f"{folder} is in the way of a submission's results: move it, or give another --out")

    def _refuse_tampering(self, submission: Submission) -> None:
        if fingerprint(self.root) != self.fingerprint:
            raise Tampered(
                f"files of the course in {self.root} were changed while submissions were graded, {submission.name} "
                "last: restore them, look at that submission, and grade all again as a user who may not write there"
            )

    def _write(self, submission: Submission, report: Report) -> None:
        folder = _inside(self.out, submission.name)
        write_json(folder / "minfer.json", report.as_dict())
        write_json(folder / "results.json", gradescope(report))
        write_receipts(report, folder)
        self.graded[submission.name] = report
        self._write_csv()

    def _note_output(self, submission: Submission, text: str) -> None:
        (_inside(self.out, submission.name) / "output.txt").write_text(text + "\n", encoding="utf-8")

    def _write_csv(self) -> None:
        tasks = {f"task {task.number}": task.number for task in self.exercise.tasks}
        beside = _beside(self.csv)
        with open(beside, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            rows = csv.writer(file)
            rows.writerow([*COLUMNS, *tasks, "hidden", *(status.value for status in Status)])
            for name, report in sorted(self.graded.items()):
                by_task = [_points(report, task=number, visible=True) for number in tasks.values()]
                counts = [report.counts.get(status, 0) for status in Status]
                rows.writerow([*self._row(name, report), *by_task, _points(report, visible=False), *counts])
        beside.replace(self.csv)

    def _row(self, name: str, report: Report) -> list[object]:
        engine, first = report.engine, next((entry.in_brief for entry in report.wrong), "")
        graded = [name, report.score, report.maximum or 100, engine.get("file", ""), engine["sha"]]
        return [*graded, report.note, first, round(self.seconds[name], 1)]


def _points(report: Report, **like: object) -> float:
    """Points made by the entries that are like that."""
    entries = [e for e in report.entries if all(getattr(e, name) == value for name, value in like.items())]
    return round(sum(entry.score for entry in entries), 4)


def _beside(path: Path) -> Path:
    """Where a file is written before it takes another's place."""
    return path.with_name(path.name + ".part")


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _rename(report: Report, copied: str, engine: str) -> None:
    """Say the submission's own path, not that of its copy."""
    report.engine = {key: value.replace(copied, engine) for key, value in report.engine.items()}
    report.note = report.note.replace(copied, engine)
