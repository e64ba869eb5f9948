"""What may be named to --engine beside a file and a module: notebooks and folders."""

import json
import sys

import pytest

from minfer.course.grader.checking import run_tests
from minfer.course.grader.loading import Target
from minfer.course.grader.refusals import Refused
from minfer.course.source.notebook import Notebook
from tests.course.toy import engine, toy_course

CELLS = [
    "%matplotlib inline\nimport os\n!pip install x\nfrom pathlib import Path",
    "LIMIT = max(1, 2)\nhalf = LIMIT / 2\nstarted = print('this must not run')",
    "%%bash\nexit 1",
    "try:\n    import nowhere_to_be_found as fast\nexcept ImportError:\n    fast = None",
    "def ends():\n    return [LIMIT - 1, 2]\n\nclass Engine:\n    def one(self):\n        return [*ends(), 1]\n"
    "    def two(self):\n        return [1, 2, half + 1]",
    "os._exit(3)\nfor x in [1]:\n    raise RuntimeError('nor this')",
    "if LIMIT > 1:\n    raise RuntimeError('nor this')",
]


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(cells, name="mine.ipynb"):
        made = [{"cell_type": "markdown", "source": ["# Mine"]}]
        made += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
        (tmp_path / name).write_text(json.dumps({"cells": made, "nbformat": 4}))
        return tmp_path / name

    return write


def test_of_a_notebook_only_what_defines_is_run(notebook, capsys):
    engine_cls = Target.parse(str(notebook(CELLS))).load(phase=1)
    assert engine_cls().one() == [1, 2, 1]
    assert engine_cls().two() == [1, 2, 2.0]
    assert capsys.readouterr().out == ""


def test_a_notebook_is_graded_as_a_file_is(notebook, tmp_path):
    root = toy_course(tmp_path / "course", ["one", "two"])
    report = run_tests(1, root, [f"--engine={notebook(CELLS)}:Engine"])
    assert report.score == 100
    assert ":Engine (cell 6, line 4, sha " in report.engine["described"]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["x = 1", "def f(:"], r"mine.ipynb, cell 3, line 1: invalid syntax"),
        (["import minfer", "from minfer.phase2 import Engine"], r"cell 3, line 1: minfer.phase2 is the answer"),
        (["import nowhere_to_be_found\nclass Engine: pass"], r"cell 2, line 1, fails while it is imported: ModuleNot"),
        (["x = 1"], r"defines no class 'Engine'"),
    ],
)
def test_what_is_wrong_with_a_notebook_is_said_with_its_cell(cells, message, notebook):
    with pytest.raises(Refused, match=message):
        Target.parse(str(notebook(cells))).load(phase=1)


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    (tmp_path / "mine.ipynb").write_text("not JSON")
    with pytest.raises(Refused, match="is not a notebook of format 4"):
        Target.parse(f"{tmp_path}/mine.ipynb").describe()


def test_magic_lines_keep_the_numbers_of_the_lines_below():
    assert Notebook({2: "%time\nx = 1\n  !ls\ny = 2"}).code.splitlines() == ["# cell 2", "", "x = 1", "", "y = 2"]


def test_of_a_folder_the_phases_file_is_graded_or_its_only_one(tmp_path):
    for name in ("phase1.py", "phase2.py", "other.py"):
        engine(tmp_path / name, one=f"return '{name}'")
    target = Target.parse(str(tmp_path))
    assert [target.at(phase).path().name for phase in (1, 2)] == ["phase1.py", "phase2.py"]
    with pytest.raises(Refused, match=r"has no phase3.py or phase3.ipynb \(there: other.py, phase1.py, phase2.py\)"):
        target.at(3)
    for name in ("phase1.py", "phase2.py"):
        (tmp_path / name).unlink()
    assert target.at(3).path().name == "other.py"


def test_a_file_that_leaves_the_process_while_it_is_imported_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit(0)")
    with pytest.raises(Refused, match="line 1, fails while it is imported: SystemExit: 0"):
        Target.parse(f"{tmp_path}/mine.py").load(phase=1)


def test_an_answer_cannot_be_read_while_an_engine_is_graded(tmp_path):
    import minfer

    source = f"open({minfer.__path__[0] + '/phase3/engine.py'!r}).read()"
    (tmp_path / "mine.py").write_text(f"{source}\nclass Engine: pass")
    with pytest.raises(Refused, match=r"line 1, opens .*phase3/engine.py, the answer to what is graded"):
        Target.parse(f"{tmp_path}/mine.py").load(phase=3)
    Target.parse(f"{tmp_path}/mine.py").load(phase=4)
    exec(source)  # afterwards it is a file like any other
