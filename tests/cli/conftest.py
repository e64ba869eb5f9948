"""The command line under test: run in this process, on a tiny model of random weights."""

import io
import json
import sys
from typing import NamedTuple

import pytest
import torch

from minfer.cli import main
from minfer.course.lab.families import Sizes, family_facts
from minfer.course.lab.tiny import TinyModel
from tests.cli.streams import Keyboard

LETTERS = 30  # all ids that the tokenizer has, so that every token is seen
CONTEXT = 3000  # long enough that a test can interrupt a generation
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"


class Result(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def answers(self):
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A Llama of random weights, with a tokenizer of letters and a chat template."""
    facts = {**family_facts(Sizes.draw(0))["llama"], "max_position_embeddings": CONTEXT, "vocab_size": LETTERS}
    made = TinyModel("llama", facts, seed=0).save(tmp_path_factory.mktemp("models") / "letters", dtype=torch.float32)
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return made


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One thread, an empty model cache, an empty current folder, and a terminal that is not narrow."""
    monkeypatch.setenv("MINFER_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(capsys, monkeypatch):
    """`run("generate", "hi", stdin=b"…")`: exit code and output; without `stdin` nobody types."""

    def run(*args, stdin=None):
        source = Keyboard() if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        return Result(code, *capsys.readouterr())

    return run
