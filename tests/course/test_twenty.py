"""`minfer grade` over twenty submissions, honest and hostile: every verdict is right, and the same a second time.

They are made of the course's own material: phase 1's reference and starter, planted mistakes, and what else students
hand in. Graded are the tests of the stop rules, which take a moment.
"""

import csv
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import minfer
from minfer.course.grader import submissions
from minfer.course.grader.child import Limits
from minfer.course.grader.grader import Grader
from minfer.course.lessons.files import course_root
from minfer.course.marks.report import Status
from tests.course.toy import PYPROJECT

ROOT = course_root()
ANSWER = Path(minfer.__path__[0]) / "phase1" / "engine.py"
REFERENCE = ANSWER.read_text()
STARTER = (ROOT / "phases/phase1/exercise.py").read_text()
ALL, TESTS = 19, 4  # points and tests of the stop rules
PATIENCE = 10
"""How many times as long as the reference's slowest test takes here the one that is endless may take."""


def after(hook, body, head=""):
    """The reference with something else in one of its hooks."""
    return f"{REFERENCE}\n\n{head}\n\n\nclass Engine(Engine):\n    def {hook}(self, *given):\n        {body}\n"


@dataclass
class Handed:
    """What is handed in, and what is to come of it: points, how tests end, what the note or the first failure says."""

    files: dict[str, str]
    score: float
    counts: dict[Status, int]
    says: str = ""


def handed(text, score, counts, says="", name="phase1.py"):
    return Handed({name: text}, score, counts, says)


NOTHING = {Status.NOT_RUN: TESTS}
LOST = {Status.BLOCKED: 2, Status.NOT_RUN: 1}  # beside a test that is lost: two need it, the other is not run any more
WRONG = {Status.FAILED: 2, Status.BLOCKED: 2}
FOREVER = "while True:\n            try: time.sleep(9)\n            except BaseException: pass"
ENDLESS = "commit", "super().commit(*given)\n        for one in given[0]:\n            one.end_ids = ()"
LATER = "def f():\n    from minfer.phase3 import Engine\n    return Engine\n"
RUN = {  # what a process is started for, and torch is imported, which takes two seconds
    "right": handed(REFERENCE, ALL, {Status.PASSED: TESTS}),
    "prints": handed(
        after("forward", "print('x' * 1_000_000); return super().forward(*given)"), ALL, {Status.PASSED: TESTS}
    ),
    "starter": handed(STARTER, 0, {Status.BLOCKED: TESTS}),
    "planted": handed(after(*ENDLESS), 0, WRONG, "P1-08  the stop rules: "),
    "stubborn": handed(
        after("forward", FOREVER, "import time"), 0, {Status.TIMEOUT: 1, **LOST}, "could not be interrupted"
    ),
    "exits": handed(after("forward", "os._exit(0)", "import os"), 0, {Status.CRASHED: 1, **LOST}, "with exit code 0"),
    "ends": handed(
        after("forward", "pytest.exit('all passed', 0)", "import pytest"),
        0,
        {Status.CRASHED: 1, **LOST},
        "it ended the test run",
    ),
    "reads": handed(after("forward", f"return open({str(ANSWER)!r}).read()"), 0, WRONG, "the answer to what is graded"),
    "skips": handed(
        after("forward", "pytest.skip()", "import pytest"), 0, {Status.SKIPPED: 2, Status.BLOCKED: 2}, "by the engine"
    ),
}
READ = {  # what is refused when it has been read
    "imports": handed("from minfer.phase1 import Engine\n", 0, NOTHING, "minfer.phase1 is the answer"),
    "borrows": handed(f"{REFERENCE}\n\n{LATER}", 0, NOTHING, "minfer.phase3 is the answer"),
    "unreadable": handed("class Engine:\n  def(", 0, NOTHING, "invalid syntax"),
    "torn": handed('{"cells": [', 0, {}, "is not a notebook of format 4", name="phase1.ipynb"),
    "letter": handed("sorry", 0, {}, "there is no phase1.py or phase1.ipynb in it (but nothing)", name="letter.txt"),
    "others": Handed({"phase2.py": STARTER, "phase3.py": STARTER}, 0, {}, "in it (but phase2.py, phase3.py)"),
    "several": Handed({"a.py": REFERENCE, "b.py": STARTER}, 0, {}, "in it (but a.py, b.py)"),
    "course": Handed({"minfer/phase1.py": REFERENCE}, 0, {}, "in it (but nothing)"),
    "nothing": Handed({}, 0, {}, "in it (but nothing)"),
    "dangling": Handed({}, 0, {}, "in it (but nothing)"),
    "large": handed(REFERENCE, 0, {}, "it has 201 MB, more than 200"),
}
HANDED = {**RUN, **READ}
AGAIN = ("right", "exits", *READ)


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory):
    """All submissions, a folder each."""
    folder = tmp_path_factory.mktemp("handed")
    for submission, handed in HANDED.items():
        (folder / submission).mkdir()
        for name, text in handed.files.items():
            path = folder / submission / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    (folder / "dangling" / "phase1.py").symlink_to("/nowhere")
    with open(folder / "large" / "data.bin", "wb") as file:
        file.truncate(201 * 2**20)  # takes no room on the disk
    return submissions.find(folder)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Phase 1's exercise, and of its tests those of the stop rules."""
    root = tmp_path_factory.mktemp("course")
    for path in ("phases/phase1", "tests/phase1"):
        (root / path).mkdir(parents=True)
    for path in ("phases/phase1/exercise.toml", "tests/phase1/test_stopping.py"):
        shutil.copyfile(ROOT / path, root / path)
    (root / "pyproject.toml").write_text(PYPROJECT)
    return root


@pytest.fixture(scope="module")
def twice(course, handed_in, tmp_path_factory):
    """Two gradings, of all and of a part, by name.

    What is endless is graded alone, with limits that follow from what the reference takes here; all others have those
    of every grading, which they would need only on a machine that is a hundred times as slow.
    """

    def graded(names, limits):
        out = tmp_path_factory.mktemp("out")
        grader = Grader(course, 1, out, out / "grades.csv", 17, limits)
        grader.run([one for one in handed_in if one.name in names], jobs=2)
        with open(grader.csv, newline="") as file:
            rows = {row["submission"]: row for row in csv.DictReader(file)}
        return {name: (report, rows[name]) for name, report in grader.graded.items()}

    right = graded(["right"], Limits())
    report, row = right["right"]
    seconds = max(2.0, PATIENCE * max(entry.seconds for entry in report.entries))
    short = Limits(PATIENCE * (seconds + float(row["seconds"])), seconds, losses=1)
    endless, limits = graded(["stubborn"], short), Limits(losses=1)
    return {**right, **endless, **graded({*HANDED} - {"right", "stubborn"}, limits)}, graded(AGAIN, limits)


@pytest.mark.parametrize("name", HANDED)
def test_every_verdict_is_right(name, twice):
    expected, (report, _) = HANDED[name], twice[0][name]
    assert report.counts == expected.counts, report.in_words()
    assert report.score == expected.score
    said = f"{report.note} {report.wrong[0].in_brief if report.wrong else ''}".strip()
    assert expected.says in said
    assert bool(said) == bool(expected.says)


def test_a_planted_mistake_is_named(twice):
    report, _ = twice[0]["planted"]
    assert report.wrong[0].looks_like == ("P1-08 no end token",)


def test_a_second_run_says_the_same(twice):
    first, second = twice
    assert (set(first), set(second)) == (set(HANDED), set(AGAIN))
    for name, (_, row) in second.items():
        assert row == {**first[name][1], "seconds": row["seconds"]}
