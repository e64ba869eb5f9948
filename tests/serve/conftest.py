"""A model of random weights with a tokenizer of letters, and a server in front of it."""

import json

import pytest
import torch
from openai import OpenAI

from minfer.core.tokenizer import load_tokenizer
from minfer.course.lab.families import Sizes, family_facts
from minfer.course.lab.tiny import TinyModel
from minfer.serve import live
from tests.serve.serving import PATIENCE, Stepped, engine_of, serving

LETTERS = 30
CONTEXT = 1024
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A Llama of random weights, with a tokenizer of letters and a chat template."""
    facts = {**family_facts(Sizes.draw(0))["llama"], "max_position_embeddings": CONTEXT, "vocab_size": LETTERS}
    made = TinyModel("llama", facts, seed=0).save(tmp_path_factory.mktemp("models") / "letters", dtype=torch.float64)
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return made


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def module(folder):
    return Stepped.load(str(folder), device="cpu", dtype="float64", num_blocks=1).model


@pytest.fixture(scope="session")
def tokenizer(folder):
    return load_tokenizer(folder)


@pytest.fixture
def engine(module, tokenizer):
    """A fresh engine; `hold` and `let` steer its steps."""
    return engine_of(module, tokenizer)


@pytest.fixture(scope="session")
def shared(module, tokenizer):
    """One server for tests that leave nothing behind."""
    with serving(engine_of(module, tokenizer)) as made:
        yield made


@pytest.fixture
def server(shared):
    """The shared server; when the test has ended, every block must be free."""
    yield shared
    shared.all_free()


@pytest.fixture
def patient(monkeypatch):
    """Who looks at an engine waits for it; else, where it is slow, what is shown is of an earlier look, or nothing."""
    monkeypatch.setattr(live, "PATIENCE", PATIENCE)


@pytest.fixture
def client(server):
    """OpenAI's own client."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made
