"""Every test of a phase counts for one task, every task has tests; what a starter asks for is all that it lacks."""

import re
from pathlib import Path

import pytest

from minfer.core.errors import MinferError
from minfer.course.lessons.exercise import Exercise
from minfer.course.lessons.starter import Starter
from tests.meta.in_process import Outcomes, names_of, run_engine

FOLDER = Path(__file__).parents[2] / "phases"
PHASES = sorted(int(path.parent.name[5:]) for path in FOLDER.glob("phase*/exercise.toml"))
GOOD = """
title = "t"
minutes = 1
[[task]]
title = "t"
goal = "g"
write = ["place"]
checks = { P2-01 = 100 }
hints = ["a", "b", "c"]
"""


@pytest.mark.parametrize("phase", PHASES)
def test_tests_and_tasks_agree(phase):
    exercise = Exercise.read(phase, FOLDER)
    tests = names_of(phase)
    assert 2 <= len(exercise.tasks) <= 5
    without = [name for name in tests if exercise.task_of(name) is None]
    assert not without, f"no task of phase {phase} counts {without}"
    idle = set(exercise.codes) - {exercise.code_of(name) for name in tests}
    assert not idle, f"no test of phase {phase} bears {idle}"


@pytest.mark.parametrize("phase", PHASES)
def test_a_starter_scores_nothing_and_says_to_do(phase):
    exercise, outcomes = Exercise.read(phase, FOLDER), Outcomes()
    run_engine(phase, str(FOLDER / f"phase{phase}" / "exercise.py"), outcomes)
    assert outcomes.shown
    for name, shown in outcomes.shown.items():
        code = exercise.code_of(name)
        worth = exercise.task_of(name).checks[code]
        assert shown or not worth, f"{name} passes with nothing written, and is worth {worth}"
        begun = rf"(todo: |blocked: task [1-5] comes first \()P{phase} task [1-5]: \w"
        begun += rf"|blocked: needs (one of )?P{phase}-"
        assert not shown or re.match(begun, shown), f"{name} fails otherwise:\n{shown}"


def test_the_longest_code_counts():
    exercise = Exercise.read(3, FOLDER)
    assert exercise.code_of("test_P0_28_a_bad_request_runs_nothing") == "P0-28"
    assert exercise.code_of("test_P0_20_every_family_at_every_step") == "P0"
    assert exercise.code_of("test_P3_1_and_no_more") is None


def test_a_body_that_is_not_asked_for_stays():
    text = Starter(Exercise.read(3, FOLDER)).files()["exercise.py"]
    assert "return causal_mask(positions, held[self.first_visible(window) :], window)" in text
    asked = [name for task in Exercise.read(3, FOLDER).tasks for name in task.write]
    assert text.count('raise NotImplementedError("P3') == len(asked)
    assert "from minfer.phase2 import Engine" in text
    assert "minfer.phase3" not in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("= 100", "= 99"), "points sum to 99, not to 100"),
        (('"b", ', ""), "task 1 has 2 hints, not 3"),
        (("minutes = 1", ""), "minutes"),
        (("minutes", "minuts"), "minuts"),
        (("title = ", "title "), "exercise.toml: "),
    ],
)
def test_a_file_that_is_wrong_is_refused(change, said, tmp_path):
    (tmp_path / "phase2").mkdir()
    (tmp_path / "phase2" / "exercise.toml").write_text(GOOD.replace(*change))
    with pytest.raises(MinferError, match=said):
        Exercise.read(2, tmp_path)


def test_a_task_for_what_is_not_there_is_refused(tmp_path):
    (tmp_path / "phase2").mkdir()
    (tmp_path / "phase2" / "exercise.toml").write_text(GOOD.replace('"place"', '"plaice"'))
    with pytest.raises(MinferError, match="plaice"):
        Starter(Exercise.read(2, tmp_path))
