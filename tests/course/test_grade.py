"""`minfer grade`: whatever a submission does, every other one is graded and the report says what happened."""

import csv
import json
import os
import signal
import socket
import time

import pytest

import minfer
from minfer.core.errors import MinferError
from minfer.course.grader import child, submissions
from minfer.course.grader.child import Limits
from minfer.course.grader.confine import namespaces
from minfer.course.grader.excerpt import Excerpt
from minfer.course.grader.grader import Grader, Tampered, Watcher
from minfer.course.grader.guards import Forbidden, time_limit, time_stands_still
from minfer.course.grader.journal import Journal
from minfer.course.grader.submissions import Submission, Unusable
from minfer.course.marks.report import Entry, Report, Status, read_report, write_json
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


class Told(Watcher):
    """Notes what it is told."""

    def __init__(self):
        self.begun, self.furthest, self.seconds = [], {}, {}

    def began(self, submission):
        self.begun.append(submission.name)

    def advanced(self, submission, done, total):
        assert done >= self.furthest.get(submission.name, (0, 0))[0]
        self.furthest[submission.name] = done, total

    def ended(self, submission, report, seconds):
        self.seconds[submission.name] = seconds


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A grader that has graded a folder of submissions, and what was told meanwhile."""
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
    told = Told()
    limits = Limits(seconds=200, test_seconds=3, memory_gb=4)
    grader = Grader(root, 1, out, out / "grades.csv", 17, limits, watcher=told)
    with listening, pytest.MonkeyPatch.context() as patched:
        patched.setattr(child, "GRACE", 1)  # for a test that does not end anyway
        grader.run(submissions.find(folder), 2)
    return grader, told


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
    grader, told = graded
    assert sorted(grader.graded) == sorted(told.begun) == ["hostile", "leaves", "nested", "notes"]
    assert told.seconds == grader.seconds
    assert {name: total for name, (_, total) in told.furthest.items()} == dict.fromkeys(
        ("hostile", "leaves", "nested"), len(SAYS)
    )
    assert told.furthest["hostile"][0] > len(SAYS) / 2
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
    assert {name: float(row["seconds"]) for name, row in rows.items()} == {
        n: round(s, 1) for n, s in told.seconds.items()
    }
    assert rows["hostile"]["first_failure"].startswith(
        "P1-02  says exits: the process ended by itself, with exit code 0"
    )
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


def test_what_ends_the_grading_early_ends_what_is_being_graded(tmp_path):
    root = toy_course(tmp_path / "toy", ["one", "two"])
    folder = tmp_path / "submissions"
    folder.mkdir()
    engine(folder / "endless.py", "import time", one="time.sleep(1000)")
    (folder / "notes.txt").touch()

    class Impatient(Watcher):
        def ended(self, submission, report, seconds):
            raise KeyboardInterrupt

    grader = Grader(root, 1, tmp_path, tmp_path / "grades.csv", 17, Limits(1000, 1000), watcher=Impatient())
    with pytest.raises(KeyboardInterrupt):
        grader.run(submissions.find(folder), 2)
    assert [*grader.graded] == ["notes"]


def test_output_keeps_its_first_and_its_last_bytes():
    import io

    output = Excerpt()
    output.follow(io.BufferedReader(io.BytesIO(b"first" + b"." * 1_000_000 + b"last")))
    assert output.text.startswith("first.")
    assert output.text.endswith(".last")
    assert "934,473 bytes left out" in output.text


def test_a_journal_that_was_spoilt_is_read_as_far_as_it_is_whole(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", losses=9)
    journal.new_child()
    journal.path.write_bytes(
        b'{"event": "start", "test": "a"}\nnonsense\n[1]\n{"event": "result", "entry": {"test": "x"}}\n{"ev'
    )
    journal.follow()
    assert journal.running == "a"
    journal.path.write_bytes(journal.path.read_bytes() + b'ent": "end"}\n')
    journal.follow()
    assert journal.ended


def planned(tmp_path, *needs, losses):
    """A journal of tests that need others; and a way to add to it."""
    journal = Journal(tmp_path / "journal.jsonl", losses)
    journal.new_child()
    entries = [Entry(f"t{number}", 1, f"P1-{number}", f"test {number}", needs=one) for number, one in enumerate(needs)]
    plan = Report({"spec": "", "described": "", "sha": ""}, 17, {}, entries).as_dict()

    def add(*events):
        with open(journal.path, "a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
        journal.follow()

    add({"event": "plan", "report": plan})
    return journal, add


def result(name, status):
    return {"event": "result", "entry": Entry(name, 1, "", "", status=status).as_dict()}


def test_what_the_graded_engine_writes_into_its_journal_spoils_no_report(tmp_path):
    journal, add = planned(tmp_path, (), losses=9)
    odd = Entry("t0", 1, "P1-0", "test 0").as_dict()
    for spoilt in ({"seconds": "x"}, {"status": "weird"}, {"looks_like": 3}, {"test": ["t0"]}):
        add({"event": "result", "entry": {**odd, "status": "passed", **spoilt}})
    assert journal.done == []
    add({"event": "result", "entry": {**odd, "status": "failed", "message": 5, "looks_like": [3], "points": 99}})
    (entry,) = journal.report.entries
    assert (entry.message, entry.looks_like, entry.points) == ("5", ("3",), 0.0)
    with open(journal.path, "a") as file:
        file.write("[" * 200_000 + "\n")
    add({"event": "refused", "note": 7})
    assert journal.report.note == "7"
    journal.path.unlink()
    os.mkfifo(journal.path)
    journal.follow()  # and does not wait for a writer


def test_half_a_character_in_an_error_or_a_name_is_written_as_an_escape(tmp_path):
    (tmp_path / "in" / "caf\udce9").mkdir(parents=True)
    (found,) = submissions.find(tmp_path / "in")
    assert found.name == r"caf\udce9"
    message = "P1-0  test 0\n  raised    ValueError: \ud800"
    entry = Entry("t0", 1, "P1-0", "test 0", status=Status.FAILED, message=message)
    assert entry.in_brief == r"P1-0  test 0: ValueError: \ud800"
    report = Report({"spec": "caf\udce9", "described": "", "sha": ""}, 17, {}, [entry])
    write_json(tmp_path / "minfer.json", report.as_dict())
    assert read_report(tmp_path / "minfer.json") == report


def test_what_cannot_be_copied_is_nobody_else_s_trouble_and_an_environment_is_left_out(tmp_path):
    own = tmp_path / "own"
    (own / ".venv" / "lib").mkdir(parents=True)
    (own / "phase1.py").touch()
    with open(own / ".venv" / "lib" / "torch.so", "wb") as file:
        file.truncate(submissions.MOST_BYTES + 1)  # takes no room on the disk
    (tmp_path / "first").mkdir()
    copy = Submission("own", own).copy(tmp_path / "first")
    assert [path.name for path in copy.iterdir()] == ["phase1.py"]
    os.mkfifo(own / "pipe")
    (tmp_path / "second").mkdir()
    with pytest.raises(Unusable, match=r"it cannot be copied: .*pipe.* is a named pipe"):
        Submission("own", own).copy(tmp_path / "second")


def test_after_so_many_losses_no_later_result_counts_whenever_it_is_read(tmp_path):
    journal, add = planned(tmp_path, *[()] * 4, losses=2)
    add(result("t0", Status.TIMEOUT), result("t1", Status.FAILED))
    assert not journal.is_given_up
    add({"event": "start", "test": "t2"})
    assert journal.blame(Status.CRASHED, "it left")
    add(result("t3", Status.PASSED))
    assert journal.is_given_up
    assert journal.done == ["t0", "t1", "t2"]


def test_a_test_that_is_over_has_no_time_limit_while_planted_mistakes_are_tried(tmp_path):
    journal, add = planned(tmp_path, (), losses=9)
    add({"event": "start", "test": "t0"})
    assert (journal.running, journal.is_over) == ("t0", False)
    add({"event": "ask", "test": "t0"})
    assert (journal.running, journal.is_over) == ("t0", True)
    left = lambda: signal.getitimer(signal.ITIMER_REAL)[0]  # noqa: E731
    with time_limit(1000, "late"):
        with time_stands_still():
            assert left() == 0, "the limit's timer goes on"
        assert 0 < left() <= 1000
    with pytest.raises(Forbidden, match="late"), time_limit(0.05, "late"):
        time.sleep(100)


def test_what_needs_a_test_that_crashed_is_blocked(tmp_path):
    journal, add = planned(tmp_path, (), ("P1-0",), ("P1-1",), (), ("P1-3",), losses=9)
    add({"event": "start", "test": "t0"})
    journal.blame(Status.CRASHED, "it left")
    journal.block()
    assert [entry.status.value for entry in journal.report.entries] == [
        "crashed",
        "blocked",
        "blocked",
        "not run",
        "not run",
    ]
    assert journal.report.entries[1].message == "blocked: needs P1-0 (test 0), which did not pass"


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
