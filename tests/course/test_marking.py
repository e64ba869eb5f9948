"""What each outcome of a test comes to, in points and in words, and the files that say so."""

import csv
import json
from pathlib import Path

import pytest

import minfer.course.marks
from minfer.core.errors import MinferError
from minfer.course.grader.checking import run_tests
from minfer.course.marks.report import Entry, Report, Status
from minfer.course.marks.table import remarks
from tests.course.toy import engine, toy_course

NEEDS = {"waits": "fails"}
GPU = "@pytest.mark.gpu\n@pytest.mark.skipif(True, reason='no card')\n"
MARKS = {"card": GPU, "endless": "@pytest.mark.timeout(0.5)\n"}
SAYS = {
    "waits": ("return [1, 2, 1]", Status.BLOCKED),
    "right": ("return [1, 2, 2]", Status.PASSED),
    "fails": ("return [1, 2, 4]", Status.FAILED),
    "raises": ("return {}['key']", Status.FAILED),
    "later": ('raise NotImplementedError("P1 task 2: say2")', Status.BLOCKED),
    "mine": ('raise NotImplementedError("P1 task 1: say1")', Status.TODO),
    "skips": ("pytest.skip('not today')", Status.SKIPPED),
    "expects": ("pytest.xfail('not today')", Status.SKIPPED),
    "card": ("return [1, 2, 9]", Status.ABSENT),
    "endless": ("while True: pass", Status.TIMEOUT),
    "leaves": ("raise SystemExit(0)", Status.FAILED),
    "kernel": ("return torch.zeros(1, dtype=torch.complex64) < 1", Status.FAILED),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The report of an engine that does something else in each test, and the files that were written."""
    root = toy_course(tmp_path_factory.mktemp("toy"), list(SAYS), NEEDS, MARKS)
    path = engine(root / "mine.py", "import pytest, torch", **{name: body for name, (body, _) in SAYS.items()})
    files = [f"--gradescope={root}/results.json", f"--csv={root}/tests.csv", f"--junitxml={root}/junit.xml"]
    return root, run_tests(1, root, [f"--engine={path}", *files])


def named(report, name):
    return next(entry for entry in report.entries if entry.title == f"says {name}")


@pytest.mark.parametrize("name", SAYS)
def test_an_outcome_has_its_status(name, graded):
    assert named(graded[1], name).status is SAYS[name][1]


def test_only_what_passed_scores_and_only_what_this_machine_lacks_leaves_the_total(graded):
    _, report = graded
    assert [entry.title for entry in report.entries if entry.score] == ["says right"]
    assert report.score == pytest.approx(50 / 6)
    assert report.maximum == pytest.approx(100 - named(report, "card").points) == pytest.approx(100 - 50 / 6)


def test_a_test_of_no_points_costs_one_when_it_fails_and_none_while_it_is_to_do():
    task = Entry("t::task", 3, "P3-01", "the task", 100.0, 1, status=Status.PASSED)
    for status, score in ((Status.PASSED, 100), (Status.TODO, 100), (Status.FAILED, 99), (Status.TIMEOUT, 99)):
        promise = Entry("t::promise", 3, "P0-28", "a promise", 0.0, 1, status=status, message="todo: P3 task 1")
        report = Report({"described": "mine"}, 17, {}, [task, promise])
        assert (report.score, report.maximum) == (score, 100)
        assert ("P0-28: a promise that gives no points is broken" in "\n".join(remarks(report))) == (score < 100)
    lost = Entry("t::task", 3, "P3-01", "the task", 100.0, 1, status=Status.FAILED)
    assert Report({"described": "mine"}, 17, {}, [lost, promise]).score == 0


def test_a_mismatch_says_what_was_done_expected_and_got(graded):
    lines = named(graded[1], "fails").message.splitlines()
    assert lines[0] == "P1-03  says fails  (0 of 8.33 points)"
    assert [line.split()[0] for line in lines[1:]] == ["did", "expected", "got", "think"]
    assert "3 items [1, 2, 4]: the first difference is at index 2" in lines[3]


def test_an_exception_shows_the_students_lines_and_not_the_graders(graded):
    message = named(graded[1], "raises").message
    assert "  raised    KeyError: 'key'" in message
    assert "mine.py, line 13, in raises:  return {}['key']" in message
    assert "test_toy" not in message
    assert "torch's own" not in named(graded[1], "kernel").message


def test_what_is_to_be_done_and_what_blocks_are_said_in_words(graded):
    assert named(graded[1], "mine").message == "todo: P1 task 1: say1"
    assert named(graded[1], "later").message == "blocked: task 2 comes first (P1 task 2: say2)"
    assert named(graded[1], "waits").message == "blocked: needs P1-03 (says fails), which did not pass"
    assert "not done after 0.5 s" in named(graded[1], "endless").message


def test_the_report_is_as_its_schema_says_and_comes_back_the_same(graded):
    import jsonschema  # takes a second, and no other test needs it

    schema = json.loads((Path(minfer.course.marks.__file__).parent / "report.schema.json").read_text())
    found = graded[1].as_dict()
    jsonschema.validate(json.loads(json.dumps(found)), schema)
    assert Report.from_dict(json.loads(json.dumps(found))).as_dict() == found
    assert found["engine"]["file"].endswith("mine.py")
    assert len(found["engine"]["sha"]) == 8


def test_gradescope_csv_and_junit_say_the_same(graded):
    root, report = graded
    results = json.loads((root / "results.json").read_text())
    assert results["score"] == report.score
    assert sum(test["score"] for test in results["tests"]) == pytest.approx(report.score)
    assert {test["status"] for test in results["tests"]} == {"passed", "failed"}
    with open(root / "tests.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["title"].removeprefix("says "): row["status"] for row in rows} == {
        name: status.value for name, (_, status) in SAYS.items()
    }
    assert '<property name="status" value="todo"' in (root / "junit.xml").read_text()


def test_hidden_tests_add_their_points_and_are_shown_later(tmp_path):
    root = toy_course(tmp_path / "course", ["one", "two"])
    hidden = tmp_path / "secret"
    hidden.mkdir()
    text = '{}def test_P1_90_hidden(engine_cls, lab):\n    lab.equal(engine_cls().one(), [1, 2, 1], "P1-90", "…")\n'
    path = engine(root / "mine.py", one="return [1, 2, 1]", two="return [1, 2, 2]")
    arguments = [f"--engine={path}", f"--hidden={hidden}", f"--gradescope={root}/results.json"]
    (hidden / "test_secret.py").write_text("import pytest\n@pytest.mark.points(5)\n" + text.format(""))
    report = run_tests(1, root, arguments)
    assert (report.score, report.maximum) == (105, 105)
    shown = {test["name"]: test["visibility"] for test in json.loads((root / "results.json").read_text())["tests"]}
    assert shown == {"P1-01 says one": "visible", "P1-02 says two": "visible", "P1-90 hidden": "after_published"}
    (hidden / "test_secret.py").unlink()
    (hidden / "test_other.py").write_text(text.format(""))
    with pytest.raises(MinferError, match=r"hidden test .*test_P1_90_hidden says not what it is worth"):
        run_tests(1, root, arguments)


def test_a_test_draws_the_same_whether_it_runs_alone_or_not(lab):
    from minfer.course.lab.lab import Lab

    model = lab.model()
    one, again = (Lab(3, lab.new_folder, "test_x") for _ in range(2))
    assert one.prompt(model, 9) == again.prompt(model, 9)
    assert Lab(3, lab.new_folder, "test_y").prompt(model, 9) != Lab(3, lab.new_folder, "test_x").prompt(model, 9)


def test_one_process_writes_the_results(tmp_path):
    root = toy_course(tmp_path, ["one", "two"])
    with pytest.raises(MinferError, match="results are written by one process"):
        run_tests(1, root, ["-pxdist", "--numprocesses=2"])
