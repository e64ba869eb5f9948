"""What the runner of notebooks calls too slow."""

from pathlib import Path

import pytest

from scripts.notebooks import CELL, NOTEBOOK, Run, over, report


@pytest.fixture
def run():
    return Run(Path("phase1.ipynb"), seconds=NOTEBOOK - 1, cells={0: 1.0, 4: CELL + 1.0})


def test_a_cell_beyond_its_limit_is_named_by_its_place(run):
    assert over([run], 70, allowance=1) == ["phase1.ipynb cell 5: 21 s"]


def test_a_busy_machine_is_allowed_for(run):
    assert over([run], 70, allowance=2) == []


def test_a_notebook_and_all_of_them_have_limits_too(run):
    run.cells, run.seconds = {0: 1.0}, NOTEBOOK + 1.0
    assert over([run], 481, allowance=1) == ["phase1.ipynb 61 s in all", "all: 481 s"]


def test_the_report_names_the_slowest_cells_first_and_what_failed_by_its_limit(run):
    slowest, late, whole = report([run], 70, allowance=1)
    assert slowest == "slowest: phase1.ipynb cell 5 21.0 s, phase1.ipynb cell 1 1.0 s"
    assert late.startswith("TOO SLOW phase1.ipynb cell 5: 21 s (limits: 20 s a cell")
    assert whole.startswith("1 notebooks in 70 s, 0 failed")
