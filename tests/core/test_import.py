"""`import minfer` is light: no torch, no CUDA, no network, no optional package, and text all the same.

Among minfer's own packages imports go one way.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minfer

PACKAGES = Path(minfer.__file__).parent
OPTIONAL = ("tokenizers", "jinja2", "matplotlib", "triton", "transformers", "flash_attn", "huggingface_hub", "gguf")
OPTIONAL += ("fastapi", "uvicorn", "starlette", "prometheus_client")

BLOCK = f"""
import socket, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def refuse(*args, **more):
    raise AssertionError("the network was used")

sys.meta_path.insert(0, Absent())
socket.socket.connect = socket.getaddrinfo = refuse
"""


def run(code):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_loads_no_torch():
    run("import minfer; minfer.__version__; assert 'torch' not in sys.modules and 'numpy' not in sys.modules")


def test_text_comes_without_any_optional_package():
    code = """
import minfer
from minfer import Engine, SamplingParams
import torch
assert not torch.cuda.is_initialized()
print(Engine.load("tiny", device="cpu").generate("ROMEO:", SamplingParams(max_tokens=8))[0].text)
assert not torch.cuda.is_initialized()
assert "torch._dynamo" not in sys.modules, "half of a cold start"
from minfer.cli import main
print("=====", flush=True)
sys.exit(main(["generate", "ROMEO:", "--max-tokens", "8", "--device", "cpu"]))
"""
    library, command_line = run(code).split("=====")
    assert library.strip()
    assert command_line.strip() == library.strip()


def test_an_absent_extra_is_named_at_use():
    code = """
from minfer.core.errors import MissingExtra
from minfer.core.extras import require
try:
    require("gguf", extra="gguf", purpose="converting")
except MissingExtra as error:
    print(error)
"""
    assert run(code) == "gguf is needed for converting, but is not installed: pip install 'minfer[gguf]'\n"


@pytest.mark.parametrize(
    ("package", "barred"), [("core", "cost|bench"), ("cost", "bench|calibration"), ("bench", "calibration")]
)
def test_what_measures_builds_on_what_predicts_and_never_the_other_way(package, barred):
    lines = [line for path in (PACKAGES / package).rglob("*.py") for line in path.read_text("utf-8").splitlines()]
    imports = [line.strip() for line in lines if re.match(r"\s*(from|import) ", line)]
    assert any("minfer" in line for line in imports)
    assert not [line for line in imports if re.search(rf"minfer(\.| import )({barred})\b", line)]


def test_what_is_offered_is_there():
    for name in minfer.__all__:
        assert getattr(minfer, name)
        assert name in dir(minfer)
    assert minfer.Engine.__module__ == f"minfer.phase{minfer.NEWEST_PHASE}.engine"
    with pytest.raises(AttributeError, match="module 'minfer' has no attribute 'Engin'"):
        minfer.Engin  # noqa: B018
