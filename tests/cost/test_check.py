"""Check: what is timed of a kind of steps are steps of the sizes that are predicted."""

import pytest
import torch

from minfer.bench.simulation import Nothing
from minfer.calibration import check
from minfer.calibration.check import KINDS, Check, Decode, Prefill, Run
from minfer.calibration.real_steps import sized
from minfer.core.checkpoint.shapes import random_config
from minfer.cost.cost_model import CostModel
from minfer.cost.hardware import Hardware
from minfer.course.lab.tiny import tiny_model


class Noted(Run):
    """A run that takes down the sizes of its steps, and as their seconds which of them it was."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sizes = []

    def step(self):
        self.engine.step()
        self.sizes.append(self.engine.sizes)
        return len(self.sizes) - 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_median_step_has_the_sizes_that_are_predicted(monkeypatch, kind):
    monkeypatch.setattr(check, "ROWS", ("Continuous batch",))
    monkeypatch.setattr(check, "Run", Noted)
    (run,) = Check(Nothing(random_config("smollm2-135m"))).rows.values()
    engine = run.engine
    engine.__class__ = sized(type(engine))
    assert run.sizes[kind.seconds(run)] == kind.sizes
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


def test_a_cell_is_the_least_of_a_rows_runs_and_has_its_prediction(monkeypatch):
    kinds = (Decode(2, 5), Prefill(6))
    monkeypatch.setattr(check, "KINDS", kinds)
    monkeypatch.setattr(check, "ROWS", ("Continuous batch", "BF16"))
    made = Check(tiny_model("llama", 17).module(torch.float32))
    took = iter((4.0, 8.0, 3.0, 9.0, 7.0, 6.0))
    for kind in (Decode, Prefill):
        monkeypatch.setattr(kind, "seconds", lambda *_: next(took))
    for kernels in ("float32", "float32", "bfloat16", "int8"):
        made.run(kernels)
    machine = Hardware("x", "x", 1e9, 1e9, {"float32": 1e9}, 1e-6)
    cells = made.cells(machine)
    assert [(one.row, one.name, one.measured) for one in cells] == [
        ("BF16", "decode 2 × 1 over 5", 7.0),
        ("BF16", "prefill 6", 6.0),
        ("Continuous batch", "decode 2 × 1 over 5", 3.0),
        ("Continuous batch", "prefill 6", 8.0),
    ]
    for variant in made.rows:
        model = CostModel(variant.setup(made.config), machine)
        found = [one.predicted for one in cells if one.row == variant.name]
        assert found == [model.step(kind.sizes).total for kind in kinds]
