"""The course as a student has it: start, check, hint, status, reset, replay, explain; and as a teacher exports it."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from minfer.cli import main
from minfer.core.errors import MinferError
from minfer.course import check
from minfer.course.lessons.export import Export
from minfer.course.lessons.files import course_root
from tests.meta.test_loading import KV

ROOT = course_root()


@pytest.fixture
def minfer(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*args):
        code = main([str(arg) for arg in args])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_phase_from_start_to_reset(minfer):
    code, out, _ = minfer("start", 3)
    assert code == 0
    assert "work/phase3.py" in out
    assert "task 4  " in out
    assert Path("work/phase3.py").read_text() == (ROOT / "phases/phase3/exercise.py").read_text()

    code, _, err = minfer("start", 3)
    assert code == 2
    assert "minfer reset 3 puts it aside" in err

    Path("work/phase3.py").write_text("# mine\n" + Path("work/phase3.py").read_text())
    code, out, _ = minfer("check", 3)
    assert code == 0
    assert "work/phase3.py:Engine (line " in out
    assert "0 of 100 points: " in out
    assert "next: task 1, " in out

    assert "0/100" in minfer("status")[1]
    Path("work/phase3.py").write_text("# again\n" + Path("work/phase3.py").read_text())
    assert "(changed since)" in minfer("status")[1]

    code, out, _ = minfer("reset", 3)
    backup = Path(out.splitlines()[0].removeprefix("your file is kept as "))
    assert backup.read_text().startswith("# again\n# mine\n")
    assert not Path("work/phase3.py").read_text().startswith("#")


def test_a_failure_is_shown_and_its_receipt_runs_it_again(minfer):
    Path("work").mkdir()
    wrong = textwrap.dedent(KV).replace("torch.arange(start, end)", "torch.arange(end - start)")
    Path("work/phase3.py").write_text(wrong)
    code, out, _ = minfer("check", 3)
    assert code == 0
    first = out.splitlines()[0]
    assert first.startswith("P3-01  positions go on where the cache ends  (0 of ")
    assert "more      minfer explain P3-01" in out
    receipt = Path("work/.results/phase3/P3-01.json")
    assert f"again: minfer replay {receipt}" in out
    Path("work/phase3.py").unlink()  # a receipt needs nothing else
    code, out, err = minfer("replay", receipt)
    assert (code, err) == (0, "")
    assert out.startswith(first)
    assert "\nas in the receipt\n" in out
    mended = json.loads(receipt.read_text()) | {"source": textwrap.dedent(KV)}
    receipt.write_text(json.dumps(mended))
    out = minfer("replay", receipt)[1]
    assert "P3-01  positions go on where the cache ends: passed" in out
    assert "not as in the receipt" in out


def test_hints_come_one_by_one(minfer):
    first, third = minfer("hint", 3, 2)[1], minfer("hint", 3, 2, "--level", 3)[1]
    assert "hint 1 of 3: " in first
    assert "more: minfer hint 3 2 --level 2" in first
    assert "hint 3 of 3: " in third
    assert "more:" not in third
    assert "phase 3 has no task 9: choose one of 1 to" in minfer("hint", 3, 9)[2]


def test_explain_has_a_page_a_list_and_an_error(minfer):
    assert "Look at" in minfer("explain", "P3-02")[1]
    assert minfer("explain", "P3")[1].startswith("P3-01   Positions after the prompt\n")
    assert len(minfer("explain")[1].splitlines()) > 150
    assert minfer("explain", "P3-77")[0] == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("check", 3), "there is no work/phase3.py: minfer start 3"),
        (("check", 3, "nowhere.py"), "there is no file nowhere.py"),
        (("reset", 3), "there is no work/phase3.py to reset"),
        (("start", 99), "phase 99 has no exercise"),
        (("replay", "nowhere.json"), "there is no file nowhere.json"),
        (("grade", "nowhere", "--phase", 3), "nowhere is no folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(args, message, minfer):
    code, _, err = minfer(*args)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [("start", 3), ("check", 3), ("course", "sync"), ("grade", ".", "--phase", 3)])
def test_without_the_courses_files_the_error_says_what_to_do(command, minfer, monkeypatch, tmp_path):
    import minfer as package

    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "minfer" / "__init__.py"))
    for other in ("tests", "phases", "site-packages/tests"):  # somebody else's
        Path(other).mkdir(parents=True)
    Path("pyproject.toml").touch()
    code, _, err = minfer(*command)
    assert code == 2
    assert f"neither in {tmp_path / 'site-packages'}, where this minfer is, nor in {tmp_path}: clone minfer's" in err
    assert err.count("\n") == 1


def test_a_clone_is_found_from_its_own_folder(minfer, monkeypatch, tmp_path):
    import minfer as package

    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "minfer" / "__init__.py"))
    monkeypatch.chdir(ROOT)
    assert course_root() == ROOT


def test_check_grades_the_class_of_a_cell(capsys, monkeypatch):
    cell = {"__name__": "__main__"}
    exec(textwrap.dedent(KV), cell)
    checked = check(cell["Engine"])
    assert checked.report.score == checked.report.maximum == 100
    assert "all checks with seed 17 pass" in capsys.readouterr().out
    from minfer.phase3 import Engine

    with pytest.raises(MinferError, match=r"inherits from minfer.phase3, the answer to phase 3"):
        check(Engine, phase=3)


def test_a_students_repository_works_and_has_no_answers(tmp_path):
    out = tmp_path / "students"
    files = {str(path.relative_to(out)) for path in Export(ROOT, 3).write(out)}
    assert {
        "minfer/phase2/engine.py",
        "tests/phase3/test_kv_cache.py",
        "phases/phase3/exercise.py",
        "AGENTS.md",
    } <= files
    assert not [
        name for name in files if name.startswith(("minfer/phase3", "minfer/phase8", "tests/mutants", "tests/meta"))
    ]
    assert not [name for name in files if "__pycache__" in name]
    answers = ("slice(cache.first_visible(self.window), cache.end)", "sequence.num_cached, len(sequence.token_ids)")
    source = (ROOT / "minfer/phase3/kv_cache.py").read_text() + (ROOT / "minfer/phase3/engine.py").read_text()
    for answer in answers:
        assert answer in source, "the reference has changed: choose another line of it"
        holding = [
            name for name in files if name.endswith((".py", ".md", ".html")) and answer in (out / name).read_text()
        ]
        assert holding == []
    environment = {**os.environ, "PYTHONPATH": str(out), "COLUMNS": "200"}
    for command in (["check", "3", "phases/phase3/exercise.py"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "minfer", *command], cwd=out, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        if command[0] == "check":
            assert "0 of 100 points" in done.stdout
    assert "quantize" not in done.stdout
    with pytest.raises(MinferError, match="is there already and not empty"):
        Export(ROOT, 3).write(out)
