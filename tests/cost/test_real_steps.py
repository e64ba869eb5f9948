"""Real steps: the sizes that are wanted are met, parts lie within their step, and none is one of the check's."""

import pytest
import torch

from minfer.bench.contestants import EngineContestant
from minfer.bench.simulation import Nothing
from minfer.bench.variants import BLOCK
from minfer.calibration import real_steps
from minfer.calibration.check import KINDS
from minfer.calibration.real_steps import RealSteps
from minfer.core.checkpoint.shapes import random_config
from minfer.cost.formulas import Step
from minfer.course.lab.tiny import tiny_model


@pytest.fixture
def few(monkeypatch):
    """Few requests of few tokens."""
    for name, value in {"BATCH": 4, "EACH": 2, "SHORT": 3, "PROMPTS": (5, 9), "WIDE": (2, 21), "MANY": (6, 2)}.items():
        monkeypatch.setattr(real_steps, name, value)


@pytest.fixture
def steps(few):
    """Of a real engine."""
    module = tiny_model("llama", 17).module(torch.float32)
    made = EngineContestant(5, module, **real_steps.OPTIONS, num_blocks=real_steps.blocks(16))
    return RealSteps(made).all()


def test_requests_that_leave_one_by_one_have_steps_of_every_number_of_rows(steps):
    decodes = [step.sizes.tokens for step in steps if all(query == 1 for query in step.sizes.queries)]
    assert [decodes.count(rows) for rows in (4, 3, 2, 1)] == [2, 2, 2 + real_steps.LAST, 2]
    assert decodes[:8] == [4, 4, 3, 3, 2, 2, 1, 1]
    prompts = [step.sizes for step in steps if max(step.sizes.queries) > 1]
    assert prompts[:2] == [Step.prefill(5), Step.prefill(9)]
    assert [one.queries for one in prompts[2:]] == [(3,) * 4, (21,) * 2, (2,) * 6]
    assert max(step.sizes.rows for step in steps) == 6


def test_the_parts_of_a_step_are_inside_its_forward_and_that_inside_the_step(steps):
    for step in steps:
        assert step.beside >= step.parts["others"] > 0
        assert step.host > 0
        assert (step.parts["gather"] > 0) == (step.sizes.gathered > 0)


def test_batches_are_cut_to_a_context_and_the_pool_holds_the_largest(few):
    assert real_steps.batches_within(10**6)[2] == [(3, 3), (3, 5), (3, 7), (3, 9)]
    for context in (4, 8, 16, 10**6):
        for made in real_steps.batches_within(context):
            assert all(tokens > 0 and tokens + new <= context for tokens, new in made)
            assert sum(-(-(tokens + new) // 4) for tokens, new in made) <= real_steps.blocks(4)


def test_none_of_the_steps_is_one_that_the_check_predicts():
    nothing = Nothing(random_config("smollm2-135m"))
    made = EngineContestant(5, nothing, **real_steps.OPTIONS, num_blocks=real_steps.blocks(BLOCK), block_size=BLOCK)
    met = {step.sizes for step in RealSteps(made).all()}
    assert len(met) > 20
    assert not met & {kind.sizes for kind in KINDS}
