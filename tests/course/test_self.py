"""The course tests itself: points, marks and tests agree; the reference scores all; no phase sees a later one."""

from itertools import pairwise
from pathlib import Path

import pytest

import minfer
from minfer.course.grader.checking import PLUGINS, run_tests
from minfer.course.lessons.exercise import Exercise
from minfer.course.lessons.files import course_root, exercises
from minfer.course.marks.report import Entry, Status
from minfer.course.source.outline import Outline

ROOT = course_root()
PHASES = exercises(ROOT)


class Marks:
    """A pytest plugin that keeps each graded test's own marks."""

    def pytest_collection_modifyitems(self, items):
        self.marks = {item.nodeid: list(item.iter_markers("points")) for item in items}


@pytest.fixture(scope="module")
def planned():
    """Phase -> its entries, as they are before anything ran, and the marks of its tests."""
    import json
    import tempfile

    found = {}
    for phase in PHASES:
        with tempfile.TemporaryDirectory() as folder:
            marks, report = Marks(), Path(folder) / "minfer.json"
            where = [f"{ROOT}/tests/phase{phase}", f"--rootdir={ROOT}", f"--config-file={ROOT}/pyproject.toml"]
            pytest.main([*where, *PLUGINS, "--collect-only", "-qq", f"--report={report}"], plugins=[marks])
            found[phase] = json.loads(report.read_text())["tests"], marks.marks
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_every_test_has_one_task_and_the_points_sum_to_100(phase, planned):
    tests, _ = planned[phase]
    assert [test["test"] for test in tests if test["task"] is None] == []
    assert sum(test["points"] for test in tests) == pytest.approx(100)
    exercise = Exercise.read(phase, ROOT / "phases")
    for task in exercise.tasks:
        assert sum(test["points"] for test in tests if test["task"] == task.number) == pytest.approx(task.points)


@pytest.mark.parametrize("phase", PHASES)
def test_no_tests_name_begins_anothers(phase, planned):
    """After a crash the tests that are done are deselected, and pytest takes a name for all that begin with it."""
    names = sorted(test["test"] for test in planned[phase][0])
    assert [name for name, following in pairwise(names) if following.startswith(name)] == []


@pytest.mark.parametrize("phase", PHASES)
def test_marks_give_no_points_of_their_own_and_need_what_there_is(phase, planned):
    tests, marks = planned[phase]
    codes = {test["code"] for test in tests}
    for test in tests:
        assert Entry.from_dict(test).needed <= codes - {test["code"]}, test["test"]
        assert [mark.args for mark in marks[test["test"]] if mark.args or set(mark.kwargs) - {"needs"}] == []


def test_a_reference_scores_all():
    report = run_tests(3, ROOT, ["--engine=minfer.phase3:Engine"])
    assert (report.score, report.maximum) == (100, 100)


@pytest.mark.parametrize("phase", [2, 3, 4])
def test_what_the_phase_before_answers_rightly_gives_no_points(phase, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        f"from minfer.phase{phase - 1} import Engine\n\n\nclass Engine(Engine):\n"
        "    def release(self, sequence):\n        super().release(sequence)\n"
    )
    report = run_tests(phase, ROOT, [f"--engine={path}"])
    assert report.score == 0
    assert report.counts.keys() == {Status.FAILED, Status.BLOCKED}


def test_no_test_and_no_tool_of_the_course_names_a_later_phase():
    """What runs is held to it by the plugin, which hides later phases from every test."""
    for phase in range(1, minfer.NEWEST_PHASE + 1):
        for file in (ROOT / "tests" / f"phase{phase}").rglob("*.py"):
            imported = Outline.read(file).phases_imported()
            assert [(line, other) for line, other in imported if other >= phase] == [], file
    for file in (ROOT / "tests" / "contract").rglob("*.py"):
        assert Outline.read(file).phases_imported() == [], file


def test_a_later_phase_is_hidden_while_a_reference_is_tested(tmp_path):
    from tests.course.toy import toy_course

    root = toy_course(tmp_path, ["one", "two"])
    test = next((root / "tests").rglob("test_*.py"))
    test.write_text(f"{test.read_text()}\n\ndef test_P1_03_x(engine_cls):\n    import minfer.phase2\n")
    report = run_tests(1, root, ["-k", "P1_03"])
    (entry,) = report.entries
    assert entry.status is Status.FAILED


def test_a_students_mistake_is_named_and_blocks_what_needs_it(tmp_path):
    from tests.meta.test_loading import KV

    path = tmp_path / "mine.py"
    import textwrap

    path.write_text(textwrap.dedent(KV).replace("torch.arange(start, end)", "torch.arange(end - start)"))
    report = run_tests(3, ROOT, [f"--engine={path}", "-k", "P3_01 or P3_06 or P3_09 or P3_10"])
    statuses = {entry.code: entry.status for entry in report.entries}
    assert statuses == {
        "P3-01": Status.FAILED,
        "P3-06": Status.BLOCKED,
        "P3-09": Status.BLOCKED,
        "P3-10": Status.PASSED,
    }
    (failed,) = [entry for entry in report.entries if entry.status is Status.FAILED]
    assert failed.looks_like == ("P3-01 positions from zero",)
    assert failed.message.splitlines()[-1].startswith("  looks like")
