"""`minfer grade`: whatever a submission does, every other one is graded and the report says what happened."""

import csv
import json
import socket

import pytest

import minfer
from minfer.core.errors import MinferError
from minfer.course.grader import submissions
from minfer.course.grader.child import Journal, Limits
from minfer.course.grader.confine import namespaces
from minfer.course.grader.excerpt import Excerpt
from minfer.course.grader.grader import Grader, Tampered
from minfer.course.grader.submissions import Submission, Unusable
from minfer.course.marks.report import Status
from tests.course.toy import engine, toy_course

ANSWER = f"{minfer.__path__[0]}/phase1/engine.py"
SAYS = {
    "right": ("return [1, 2, 1]", Status.PASSED, ""),
    "exits": ("os._exit(0)", Status.CRASHED, "ended by itself, with exit code 0, and left no result"),
    "stubborn": (
        "while True:\n            try: time.sleep(99)\n            except BaseException: pass",
        Status.TIMEOUT,
        "not done after 3 s and could not be interrupted",
    ),
    "bomb": ("bytearray(5 * 2**30)", Status.FAILED, "MemoryError"),
    "prints": ("print('x' * 3_000_000); return [1, 2, 5]", Status.PASSED, ""),
    "segfaults": ("ctypes.string_at(0)", Status.CRASHED, "ended by SIGSEGV"),
    "reads": (f"return open({ANSWER!r}).read()", Status.FAILED, "phase1/engine.py, the answer to what is graded"),
    "connects": ("socket.create_connection(('127.0.0.1', PORT), 1)", Status.FAILED, "Error"),
    "fills": ("open('big', 'wb').truncate(2**40)", Status.FAILED, "File too large"),
    "last": ("return [1, 2, 10]", Status.PASSED, ""),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A grader that has graded a folder of submissions, and what was said as they ended."""
    root = toy_course(tmp_path_factory.mktemp("toy"), list(SAYS))
    folder, out = tmp_path_factory.mktemp("submissions"), tmp_path_factory.mktemp("out")
    listening = socket.create_server(("127.0.0.1", 0))  # on any free port
    head = f"import ctypes, os, socket, time\nPORT = {listening.getsockname()[1]}"
    engine(folder / "hostile.py", head, **{name: body for name, (body, _, _) in SAYS.items()})
    (folder / "leaves.py").write_text("import os\nos._exit(0)\n")
    (folder / "nested" / "homework").mkdir(parents=True)
    engine(folder / "nested" / "homework" / "phase1.py", right="return [1, 2, 1]")
    (folder / "nested" / "conftest.py").write_text("raise RuntimeError('must not be loaded')")
    (folder / "nested" / "sitecustomize.py").write_text("raise RuntimeError('must not be loaded')")
    (folder / "notes.txt").write_text("sorry")
    grader = Grader(root, 1, out, out / "grades.csv", 17, Limits(seconds=200, test_seconds=3, memory_gb=4))
    ended = []
    with listening:
        grader.run(submissions.find(folder), 2, lambda submission, report: ended.append(submission.name))
    return grader, ended


def entry(grader, submission, name):
    return next(e for e in grader.graded[submission].entries if e.title == f"says {name}")


@pytest.mark.parametrize("name", SAYS)
def test_a_hostile_test_ends_with_its_own_verdict(name, graded):
    _, status, why = SAYS[name]
    if name == "connects" and not namespaces():
        why = "None"  # it may connect; said in the README
    found = entry(graded[0], "hostile", name)
    assert found.status is status, found
    assert why in found.message


def test_every_submission_has_a_result_and_a_line(graded):
    grader, ended = graded
    assert sorted(ended) == sorted(grader.graded) == ["hostile", "leaves", "nested", "notes"]
    with open(grader.csv, newline="") as file:
        rows = {row["submission"]: row for row in csv.DictReader(file)}
    assert {name: float(row["score"]) for name, row in rows.items()} == {
        "hostile": 30.0,
        "leaves": 0.0,
        "nested": 10.0,
        "notes": 0.0,
    }
    assert [rows["hostile"][column] for column in ("task 1", "task 2", "crashed", "timeout")] == [
        "20.0",
        "10.0",
        "2",
        "1",
    ]
    assert "with exit code 0, and left no result" in rows["leaves"]["note"]
    assert rows["notes"]["note"] == "nothing was graded: notes.txt is neither .py nor .ipynb"
    assert rows["nested"]["file"].endswith("submissions0/nested/homework/phase1.py")


def test_each_submission_has_its_files(graded):
    grader, _ = graded
    folder = grader.out / "hostile"
    found = json.loads((folder / "minfer.json").read_text())
    assert found["score"] == 30
    assert json.loads((folder / "results.json").read_text())["score"] == 30
    assert len((folder / "output.txt").read_bytes()) < 100_000
    failed = sum(e.status in (Status.FAILED, Status.CRASHED, Status.TIMEOUT) for e in grader.graded["hostile"].entries)
    assert len(list(folder.glob("P1-*.json"))) == failed


def test_the_course_is_watched(graded, tmp_path):
    grader, _ = graded
    test = next((grader.root / "tests").rglob("test_*.py"))
    before = test.read_text()
    test.write_text(before + "\n# changed\n")
    try:
        with pytest.raises(Tampered, match="were changed while submissions were graded, nobody last"):
            grader._refuse_tampering(Submission("nobody", tmp_path))
    finally:
        test.write_text(before)
    grader._refuse_tampering(Submission("nobody", tmp_path))


def test_output_keeps_its_first_and_its_last_bytes():
    import io

    output = Excerpt()
    output.follow(io.BufferedReader(io.BytesIO(b"first" + b"." * 1_000_000 + b"last")))
    assert output.text.startswith("first.")
    assert output.text.endswith(".last")
    assert "934,473 bytes left out" in output.text


def test_a_journal_that_was_spoilt_is_read_as_far_as_it_is_whole(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.path.write_bytes(
        b'{"event": "start", "test": "a"}\nnonsense\n[1]\n{"event": "result", "entry": {"test": "x"}}\n{"ev'
    )
    journal.follow()
    assert journal.running == "a"
    journal.path.write_bytes(journal.path.read_bytes() + b'ent": "end"}\n')
    journal.follow()
    assert journal.ended


def test_what_cannot_be_graded_says_why(tmp_path):
    (tmp_path / "two").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "two" / name).touch()
    with pytest.raises(Unusable, match=r"there is no phase3.py or phase3.ipynb in it \(but a.py, b.py\)"):
        Submission("two", tmp_path / "two").engine(3)
    with pytest.raises(MinferError, match="is no folder"):
        submissions.find(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MinferError, match="is empty"):
        submissions.find(tmp_path / "empty")
