"""The commands beside `generate`, and the way to all of them."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import minfer
from minfer import SamplingParams
from minfer.cli import SUMMARIES
from minfer.commands.flags import flag_name
from minfer.commands.phases import option_fields
from minfer.core.errors import MinferWarning
from minfer.core.hub import pull as fetching


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_help_lists_every_command_and_is_what_one_gets_without_arguments(run):
    result = run("--help")
    assert result.code == 0
    for name, summary in SUMMARIES.items():
        assert f"{name} " in result.out
        assert summary in result.out
    assert run() == result
    assert run("-h") == result


def test_every_command_has_help_of_its_own(run):
    for name in SUMMARIES:
        result = run(name, "--help")
        assert (result.code, result.err) == (0, "")
        assert f"Usage: minfer {name}" in result.out


def test_every_command_file_is_listed():
    shared = {
        "__init__",
        "batch",
        "bench_serve",
        "flags",
        "memory_report",
        "phases",
        "profile_report",
        "prompt_file",
        "summary",
    }
    found = {path.stem for path in (Path(minfer.__file__).parent / "commands").glob("*.py")}
    assert found - shared == set(SUMMARIES)


def test_version(run):
    assert run("--version").out == f"minfer {minfer.__version__}\n"


def test_models_lists_the_embedded_model_and_the_pulled_ones(run, tmp_path):
    pulled = tmp_path / "cache" / "org" / "name"
    pulled.mkdir(parents=True)
    (pulled / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}) + " " * 2000)
    text = run("models").out
    assert "tiny" in text
    for shown in ("org/name", "Qwen3ForCausalLM", "2.0 kB", str(pulled)):
        assert shown in text


@pytest.mark.parametrize("phase", range(1, minfer.NEWEST_PHASE + 1))
def test_options_shows_all_options_of_a_phase_and_marks_the_new_ones(run, phase):
    text = run("options", phase).out
    before = option_fields(phase - 1) if phase > 1 else option_fields(1)
    for option in option_fields(phase).values():
        (row,) = [line for line in text.splitlines() if f"│ {flag_name(option)} " in line]
        assert ("new: " in row) == (option.name not in before)
    for parameter in fields(SamplingParams):
        assert f"│ {flag_name(parameter)} " in text


def test_pull_fetches_by_name(run, monkeypatch):
    names = []
    monkeypatch.setattr(fetching, "pull", names.append)
    assert run("pull", "smollm2").code == 0
    assert names == ["smollm2"]


def test_memory_prints_a_budget(run):
    result = run("memory", "random:llama2-7b", "--memory-gb", 24, "--batch", 2, "--context", 100)
    assert (result.code, result.err) == (0, "")
    assert "a card of 24 GB" in result.out


def test_a_warning_is_one_line_on_standard_error(run, monkeypatch):
    import warnings

    def warn(name):
        warnings.simplefilter("always")
        warnings.warn("mind\nthe gap", MinferWarning, stacklevel=2)
        warnings.warn("of another library", UserWarning, stacklevel=2)

    monkeypatch.setattr(fetching, "pull", warn)
    shown = run("pull", "smollm2").err
    assert shown.startswith("minfer: warning: mind the gap\n")
    assert "UserWarning: of another library" in shown


def test_a_bug_keeps_its_traceback():
    code = "import minfer.core.hub as hub; hub.installed = lambda: 1 / 0; from minfer.cli import main; main(['models'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
