"""`minfer serve` as a process: it says when it is ready, what it cannot do in one line, and ends in order."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from openai import OpenAI

from minfer import NEWEST_PHASE
from minfer.cli import main
from minfer.core.params import SamplingParams
from tests.ranks.processes import children, gone
from tests.serve.serving import PATIENCE


class Process:
    """A server started from the command line."""

    def __init__(self, *args):
        phase = () if "--phase" in args else ("--phase", 5)
        command = [sys.executable, "-m", "minfer", "serve", "--port", "0", *map(str, (*phase, *args))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MINFER_API_KEY": "", "COLUMNS": "200"}
        environment.pop("MINFER_API_KEY")
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines = []
        ready = next(line for line in self._read() if "ready after" in line)
        self.url = re.search(r"http://\S+", ready)[0]

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            yield line

    def post(self, **body):
        data = json.dumps({"temperature": 0, **body}).encode()
        headers = {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/v1/completions", data, headers)) as answer:
            return answer.read()

    def open(self, **body):
        data = json.dumps(body).encode()
        made = socket.create_connection(self.url.removeprefix("http://").split(":"), PATIENCE)
        made.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )
        return made

    def end(self):
        """Wait for its end: (exit code, all that it said)."""
        said = self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(PATIENCE), "".join(self.lines) + said


@pytest.fixture
def start():
    made = []

    def start(*args):
        made.append(Process(*args))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


def test_it_serves_the_folder_that_it_was_given_and_drains_at_sigterm(start, folder):
    server = start("-m", folder, "--dtype", "float64", "--num-blocks", 300)
    assert json.loads(server.post(model="letters", prompt="abc", max_tokens=4))["choices"]
    connection = server.open(model="letters", prompt="abc", max_tokens=300, stream=True, ignore_eos=True, temperature=0)
    raw = connection.recv(65536)
    server.process.send_signal(signal.SIGTERM)
    while part := connection.recv(65536):
        raw += part
    assert raw.count(b"data: {") == 300, "what ran when the signal came is answered in full"
    assert b"[DONE]" in raw
    code, said = server.end()
    assert code == 0
    entries = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [entry["completion_tokens"] for entry in entries] == [4, 300]
    assert "Traceback" not in said


def test_what_does_not_end_by_the_deadline_is_ended_with_an_error(start, folder):
    server = start("-m", folder, "--dtype", "float64", "--num-blocks", 300, "--drain-seconds", 0)
    many = {"prompt": ["abc"] * 16, "max_tokens": 1000, "ignore_eos": True}
    connection = server.open(model="letters", stream=True, **many)
    raw = connection.recv(65536)
    server.process.send_signal(signal.SIGTERM)
    while part := connection.recv(65536):
        raw += part
    assert b'"code":"shutting_down"' in raw.replace(b'": "', b'":"')
    assert server.end()[0] == 0


def test_its_help_has_the_options_of_all_phases(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # in a narrow terminal names are cut off
    assert main(["serve", "--help"]) == 0
    said = capsys.readouterr().out
    for flag in ("--replicas", "--tensor-parallel", "--num-blocks", "--policy", "--max-requests"):
        assert flag in said


def test_the_newest_phase_serves_too(start, folder):
    """It launches a step before it reads the last one; what clients see is the same."""
    asked = {"model": "letters", "prompt": ["abc", "hello", "story"], "max_tokens": 30, "ignore_eos": True}
    options = ("-m", folder, "--dtype", "float64", "--num-blocks", 300)
    newest = start(*options, "--phase", NEWEST_PHASE, "--compiler", "none")
    connection = newest.open(model="letters", prompt="a long story", max_tokens=900, stream=True)
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    texts = [choice["text"] for choice in json.loads(newest.post(**asked))["choices"]]
    connection.close()
    raw = newest.post(**asked, stream=True)
    assert raw.count(b"data: {") == 90
    assert texts == [choice["text"] for choice in json.loads(start(*options).post(**asked))["choices"]]
    with urllib.request.urlopen(f"{newest.url}/slots") as answer:
        (slots,) = json.load(answer)
    assert slots["blocks"]["free"] == 300
    assert newest.post(**{**asked, "prompt": "x", "max_tokens": 0, "echo": True})


@pytest.mark.parametrize("dealt", ["--replicas", "--tensor-parallel"])
def test_several_processes_behind_it_say_what_one_says_and_end_with_it(start, folder, engine, dealt):
    options = ("--dtype", "float64", "--num-blocks", 300, "--device", "cpu", "--compiler", "none")
    server = start("-m", folder, "--phase", NEWEST_PHASE, *options, dealt, 2)
    others = children(server.process.pid)
    assert len(others) == 1
    asked = {"prompt": ["abc", "hello", "story", "letters"], "max_tokens": 30, "extra_body": {"ignore_eos": True}}
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        said = client.completions.create(model="letters", temperature=0, **asked)
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    assert [choice.text for choice in said.choices] == [one.text for one in engine.generate(asked["prompt"], params)]
    server.process.send_signal(signal.SIGTERM)
    code, told = server.end()
    assert code == 0
    assert "Traceback" not in told
    assert gone(others)


def run(capsys, *args):
    code = main(["serve", *map(str, args)])
    return code, capsys.readouterr().err


def test_a_port_that_is_taken_is_one_clear_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = run(capsys, "--port", port, "--phase", 5)
    assert code == 2
    assert said == (
        f"minfer: error: cannot listen at 127.0.0.1:{port} (Address already in use): choose another --port or --host\n"
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--phase", 4), "serving begins with phase 5"),
        (("--phase", 99), "there is no phase 99"),
        (("-m", "nothing-here"), "no model 'nothing-here'"),
        (("--policy", "fast"), "choose one of throughput, latency, auto"),
        (("--slo", "fast"), "--slo 'fast'"),
        (("--max-requests", 0), "max_requests = 0"),
        (("--host", "no.such.host.invalid"), "cannot listen at no.such.host.invalid:8000"),
        (("--phase", 5, "--quantization", "int8"), "phase 5 has no --quantization: it comes with phase 6"),
    ],
)
def test_what_cannot_be_served_is_one_line(capsys, args, said):
    code, error = run(capsys, *args)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line(capsys):
    code, error = run(capsys, "--port", 0, "--phase", 5, "--num-blocks", 10**9)
    assert code == 2
    assert "a pool of 1000000000 blocks" in error.splitlines()[-1]
    assert "Traceback" not in error


def test_top_without_a_server_is_one_line(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert main(["top", "--url", f"http://127.0.0.1:{free.getsockname()[1]}"]) == 2
    assert capsys.readouterr().err.startswith("minfer: error: no minfer server at")


def test_an_absent_extra_is_named_at_use():
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fastapi", "uvicorn", "prometheus_client"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from minfer.cli import main
sys.exit(main(["serve", "--phase", "5"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "pip install 'minfer[serve]'" in ended.stderr
