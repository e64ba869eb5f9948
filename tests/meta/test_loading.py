"""From `--engine` to a class: what is accepted, and what is refused with which words."""

import os
import subprocess
import sys
import textwrap

import pytest

from minfer.course.grader.loading import Target
from minfer.course.grader.refusals import Refused
from tests.meta.in_process import ROOT, Outcomes, run_engine

KV = """
    import torch
    from minfer.core.attention import LayerAttention, Visible, causal_mask
    from minfer.core.batch import ForwardBatch
    from minfer.phase2 import Engine as Base


    class Layer(LayerAttention):
        def __init__(self, window):
            self.window, self.keys, self.values = window, None, None

        def update(self, k, v):
            self.keys = k if self.keys is None else torch.cat([self.keys, k])
            self.values = v if self.values is None else torch.cat([self.values, v])
            held = torch.arange(len(self.keys))
            return Visible(self.keys, self.values, causal_mask(held[-len(k):], held, self.window))


    class Engine(Base):
        '''Phase 3 by a student: joins what it keeps.'''

        def allocate(self):
            super().allocate()
            self.layers = {}

        def admit(self, sequences):
            super().admit(sequences)
            self.layers[sequences[0].id] = [Layer(window) for window in self.config.windows]

        def prepare(self, sequences):
            (sequence,) = sequences
            start, end = sequence.num_cached, len(sequence.token_ids)
            sequence.num_scheduled = end - start
            positions = torch.arange(start, end)
            rows = torch.tensor([end - start - 1])
            input_ids = torch.tensor(sequence.token_ids[start:])
            return ForwardBatch(input_ids, positions, self.layers[sequence.id], rows, sequences)
"""
BASE = "from minfer.phase2 import Engine as Base\n"
HOOK = "    def allocate(self): pass\n"
REFUSED = {
    "nothing of its own": (
        f"{BASE}class Mine(Base):\n    pass\n\nclass Engine(Mine):\n    def extra(self):\n        return 1\n",
        "Engine overrides nothing of minfer.phase2.Engine: there is nothing to grade",
    ),
    "P0-01 typo": (
        f"{BASE}class Engine(Base):\n    def prepar(self, sequences):\n        return None\n",
        "the method 'prepar' overrides nothing and is used nowhere; did you mean 'prepare'?",
    ),
    "P0-01 another name": (
        f"{BASE}class Engine(Base):\n    def alloc(self):\n        self.cache = []\n",
        "the method 'alloc' overrides nothing and is used nowhere; did you mean 'allocate'?",
    ),
    "P0-01 in a mixin": (
        f"{BASE}class Mixin:\n    def comit(self, s, t):\n        pass\nclass Engine(Mixin, Base):\n    pass\n",
        "the method 'comit' overrides nothing and is used nowhere; did you mean 'commit'?",
    ),
    "P0-02 import": (
        "from minfer.phase3 import Engine\n",
        "line 1: minfer.phase3 is the answer to what is graded (phase 3); build on minfer.phase2",
    ),
    "P0-02 import of a later one": ("import minfer.phase4.engine as x\nEngine = x.Engine\n", "line 1: minfer.phase4"),
    "P0-02 from the package": ("from minfer import phase3\nEngine = phase3.Engine\n", "line 1: minfer.phase3"),
    "P0-02 inside a method": (
        f"{BASE}class Engine(Base):\n    def admit(self, sequences):\n        import minfer.phase3.kv_cache\n",
        "line 4: minfer.phase3",
    ),
    "P0-02 attribute": ("import minfer\nEngine = minfer.phase3.Engine\n", "line 2: minfer.phase3"),
    "P0-02 by a string": (
        "import importlib\nEngine = importlib.import_module('minfer.phase3').Engine\n",
        "line 2: minfer.phase3",
    ),
    "P0-02 by a hidden string": (
        "import importlib\nEngine = importlib.import_module('minfer.phase' + str(3)).Engine\n",
        "line 2, imports minfer.phase3, the answer to what is graded: build on minfer.phase2",
    ),
    "P0-02 the newest": ("from minfer import Engine\n", "line 1, imports minfer.phase"),
    "P0-02 by a neighbour": ("from neighbour import Engine\n", "line 1, imports minfer.phase3"),
    "P0-05 runs a model": (
        f"{BASE}import torch\ntorch.nn.Linear(2, 2)(torch.ones(2))\n",
        "line 3, runs a model while it is imported",
    ),
    "P0-05 network": (
        "import socket\nsocket.create_connection(('127.0.0.1', 9))\n",
        "line 2, connects to the network while it is imported",
    ),
    "P0-05 endless": ("while True:\n    pass\n", "takes more than 0.5 s to import"),
    "syntax": ("def f(:\n", "line 1: invalid syntax"),
    "raises": ("import torch\n1 / 0\n", "line 2, fails while it is imported: ZeroDivisionError: division by zero"),
    "other class": (f"{BASE}class Motor(Base):\n    pass\n", "defines no class 'Engine'; did you mean --engine"),
    "no class": ("x = 1\n", "defines no class 'Engine'"),
}


@pytest.fixture
def student(tmp_path, monkeypatch):
    """Writes a student's file; what its loading leaves in sys is removed."""
    (tmp_path / "neighbour.py").write_text("from minfer.phase3 import Engine\n")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text, name="mine.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        return tmp_path / name

    yield write
    sys.modules.pop("neighbour", None)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, student):
    text, message = REFUSED[case]
    path = student(text)
    with pytest.raises(Refused) as refusal:
        Target.parse(str(path)).load(phase=3, seconds=0.5 if "endless" in case else 20)
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)


ACCEPTED = {
    "a method with a name like a hook's": (
        f"{BASE}class Engine(Base):\n    def prepared(self): pass\n    def admit(self, s): self.prepared()\n"
    ),
    "a hook and a method beside it": (
        f"{BASE}class Engine(Base):\n    def prepare_(self): pass\n    def prepare(self, s): pass\n"
    ),
    "another name altogether": f"{BASE}class Engine(Base):\n    def grow(self): pass\n{HOOK}",
    "words about a phase": f'{BASE}class Engine(Base):\n    """As minfer.phase3 does it."""\n{HOOK}',
    "work under main": f"{BASE}class Engine(Base):\n{HOOK}if __name__ == '__main__':\n    Engine.load('tiny')\n",
    "a dataclass beside it": (
        f"from __future__ import annotations\nfrom dataclasses import dataclass\n{BASE}"
        f"@dataclass\nclass Slot:\n    n: int = 0\nclass Engine(Base):\n{HOOK}"
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case, student):
    engine_cls = Target.parse(str(student(ACCEPTED[case]))).load(phase=3)
    assert engine_cls.__name__ == "Engine"
    from minfer.phase2 import Engine

    assert issubclass(engine_cls, Engine)


def test_modules_are_as_before_after_a_refusal(student):
    import minfer.phase3

    before = sys.modules["minfer.phase3"]
    with pytest.raises(Refused):
        Target.parse(str(student("from neighbour import Engine\n"))).load(phase=3)
    assert sys.modules["minfer.phase3"] is before is minfer.phase3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("no_such_module:Engine", "there is no module no_such_module"),
        ("tests", "the folder has no phase3.py or phase3.ipynb (there: no Python file and no notebook)"),
        ("work/phase3", "give FILE.py, FILE.ipynb with an optional :Class, a folder, or module:Class"),
    ],
)
def test_what_is_not_there_ends_the_run_before_any_test(spec, message, capsys):
    outcomes = Outcomes()
    assert run_engine(3, spec, outcomes) == pytest.ExitCode.USAGE_ERROR
    assert outcomes.shown == {}
    assert message in capsys.readouterr().err


def test_a_refused_file_ends_the_run_before_any_test(student, capsys):
    outcomes = Outcomes()
    path = student(REFUSED["P0-01 typo"][0])
    assert run_engine(3, str(path), outcomes) == pytest.ExitCode.USAGE_ERROR
    assert outcomes.shown == {}
    assert "did you mean 'prepare'?" in capsys.readouterr().err


def test_a_right_file_passes(student, capsys):
    outcomes = Outcomes()
    path = student(KV)
    assert run_engine(3, f"{path}:Engine", outcomes) == pytest.ExitCode.OK
    assert len(outcomes.shown) > 20
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"grading {path}:Engine (line 19, sha ")
    assert ", base minfer.phase2.Engine), seed 17, torch " in first


def test_a_broken_file_fails_with_one_screen_and_the_command_to_repeat_it(student, capsys):
    outcomes = Outcomes()
    path = student(KV.replace("torch.arange(start, end)", "torch.arange(end - start)"))
    assert run_engine(3, str(path), outcomes, "-k", "P3_01 or P3_10") == pytest.ExitCode.TESTS_FAILED
    assert outcomes.shown.pop("test_P3_10_one_token_per_step_after_the_prompt") == ""
    (message,) = outcomes.shown.values()
    lines = message.splitlines()
    assert lines[0] == "P3-01  positions go on where the cache ends  (0 of 10 points)"
    assert [line.split()[0] for line in lines[1:]] == ["did", "expected", "got", "think", "looks", "more", "again"]
    assert "the same to the last digit: P3-01 positions from zero" in lines[-3]
    assert "first at step 1, step 0 is right" in message
    assert lines[-1].endswith(
        f"pytest tests/phase3/test_kv_cache.py -k test_P3_01_positions_go_on_where_the_cache_ends "
        f"--engine {path} --seed 17"
    )


def test_a_method_that_imports_the_answer_when_it_runs_finds_nothing(student):
    sly = KV.replace("super().admit(sequences)", "super().admit(sequences); __import__('minfer.pha' + 'se3')")
    outcomes = Outcomes()
    run_engine(3, str(student(sly)), outcomes, "-k", "P3_01")
    (message,) = outcomes.shown.values()
    assert "imports minfer.phase3, the answer to what is graded" in message


def test_the_command_of_the_readme(student):
    """The whole of it in a process of its own: a wrong line number or a plugin that is not found shows only there."""
    path = student(KV)
    command = [sys.executable, "-m", "pytest", "tests/phase3", "--engine", "mine.py", "-q", "-k", "P3_02"]
    (path.parent / "tests").symlink_to(ROOT / "tests")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [*command[:3], "-c", f"{ROOT}/pyproject.toml", *command[3:]]
    done = subprocess.run(arguments, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("grading mine.py:Engine (line 19, sha ")
    assert "1 passed" in done.stdout


def test_the_plugin_brings_in_no_torch():
    code = (
        "import sys, minfer.course.grader.plugin; "
        "print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.strip() == "[]"
