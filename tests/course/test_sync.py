"""Everything that is made is as it would be made now; each phase keeps its promise."""

import shutil
from pathlib import Path

import pytest

from minfer.cli import main
from minfer.course.lessons.budget import Budget, Spent
from minfer.course.lessons.sync import stale, write
from minfer.course.source.library import phases

FOLDER = Path(__file__).parents[2] / "phases"


def test_all_that_is_made_equals_its_regeneration():
    assert stale(FOLDER) == [], "run: minfer course sync"


def test_a_file_that_was_changed_lost_or_left_over_is_found_and_mended(tmp_path):
    folder = tmp_path / "phases"
    shutil.copytree(FOLDER, folder)
    changed, lost = folder / "phase3" / "exercise.py", folder / "phase4" / "DIFF.md"
    left_over = folder / "phase2" / "phase2_given.py"
    changed.write_text(changed.read_text().replace("task 1", "task 2"))
    lost.unlink()
    left_over.write_text("")
    assert stale(folder) == sorted([changed, lost, left_over])
    assert write(folder) == sorted([changed, lost, left_over])
    assert stale(folder) == []


@pytest.mark.parametrize("phase", phases())
def test_a_phase_keeps_within_its_budget(phase):
    budget = Budget.read(FOLDER / "course.toml", phase)
    assert [said for spent in Spent.by(phase) for said in spent.over(budget)] == []


def test_a_budget_that_is_exceeded_is_told():
    (spent,) = Spent.by(3)
    said = spent.over(Budget(overridden=3, lines=10))
    assert said[0] == "Engine overrides 4 methods, at most 3: allocate, admit, prepare, release"
    assert said[1].endswith("lines of code in Engine, at most 10")


def test_the_command_says_what_it_found(capsys):
    assert main(["course", "sync", "--check"]) == 0
    assert "all as it is made" in capsys.readouterr().out
