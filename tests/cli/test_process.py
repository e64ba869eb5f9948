"""The command as its users have it: a process with signals, pipes and terminals."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import minfer

MINFER = [sys.executable, "-m", "minfer"]
PATIENCE = 100  # seconds: only what hangs takes so long
ENDLESS = ["generate", "the sea", "--max-tokens", "none", "--ignore-eos", "--phase", "1"]


@pytest.fixture
def start(folder):
    """Start `minfer ARGS` on the folder's model; it is killed at the end of the test, whatever happens."""
    started = []

    def start(*args, **streams):
        settings = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", **streams.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(
            subprocess.Popen([*MINFER, *map(str, args)], env={**os.environ, **settings}, **{**pipes, **streams})
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_ends_a_stream_without_a_traceback(start, folder):
    heeded = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background is born deaf to it
    process = start(*ENDLESS, "-m", folder, preexec_fn=heeded)
    assert process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, b"\n")


def test_a_reader_that_leaves_is_no_error(start, folder):
    process = start(*ENDLESS, "-m", folder)
    assert process.stdout.read(5)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 1


@pytest.mark.parametrize("command", ["--help", "--version", "models"])
def test_a_closed_pipe_is_no_error(start, command):
    reader, writer = os.pipe()
    os.close(reader)
    process = start(command, stdout=writer)
    os.close(writer)
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 1


def test_python_m_and_the_script_are_the_same_command(start, monkeypatch):
    script = Path(sys.executable).with_name("minfer")
    assert subprocess.check_output([script, "--version"]) == start("--version").communicate()[0]


def test_help_and_models_start_without_torch():
    code = "from minfer.cli import main; import sys; main({!r}); sys.exit('torch' in sys.modules)"
    for args in (["--help"], ["models"], ["--version"]):
        assert subprocess.run([sys.executable, "-c", code.format(args)], stdout=subprocess.DEVNULL).returncode == 0


def test_a_terminal_that_cannot_show_a_character_shows_a_question_mark(start):
    process = start("options\u6f22", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert process.communicate()[1].startswith(b"minfer: error: No such command 'options?'")
    assert process.returncode == 2


def test_closed_standard_streams_do_not_matter():
    assert subprocess.run(["bash", "-c", f"exec {' '.join(MINFER)} models <&- >&- 2>&-"]).returncode == 0


def test_the_version_is_the_packages():
    text = (Path(minfer.__file__).parents[1] / "pyproject.toml").read_text()
    assert f'\nversion = "{minfer.__version__}"\n' in text
