"""Engine options: checked by name and range, and described well enough to make a command line from."""

from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from minfer.core.config import ModelConfig
from minfer.core.errors import OptionsError
from minfer.core.model import Transformer
from minfer.core.options import EngineOptions, at_least, make_options
from minfer.core.params import SamplingParams
from tests.parity.families import CONTEXT, FAMILIES
from tests.parity.phases import PHASES, engine_class, load
from tests.parity.reference import save_model


def build(phase, **options):
    model = Transformer(ModelConfig.from_dict(FAMILIES["llama-grouped"]))
    kind = engine_class(phase)
    return kind(model, None, make_options(kind.Options, options))


@pytest.mark.parametrize("phase", PHASES)
def test_every_option_of_every_phase_has_a_default_and_a_help_text(phase):
    kind = engine_class(phase).Options
    assert issubclass(kind, EngineOptions)
    kind()  # the defaults pass the checks
    for known in fields(kind):
        assert known.metadata["help"], f"{known.name} has no help text"


@pytest.mark.parametrize("phase", PHASES)
def test_an_unknown_option_is_refused_with_the_near_one_and_all_valid_ones(phase):
    kind = engine_class(phase).Options
    with pytest.raises(OptionsError) as caught:
        engine_class(phase).load("tiny", contxt=5)
    valid = ", ".join(known.name for known in fields(kind))
    assert str(caught.value) == f"unknown option 'contxt' (did you mean context?); valid options: {valid}"


def test_a_name_that_is_near_to_none_gets_no_suggestion():
    with pytest.raises(OptionsError, match=r"^unknown option 'zzz'; valid options: device, dtype, context"):
        make_options(EngineOptions, {"zzz": 1})


@pytest.mark.parametrize("value", [1, 0, -5, True, 2.0, "7"])
def test_a_context_below_2_or_of_another_kind_is_refused(value):
    with pytest.raises(OptionsError, match=r"^context = .*: give an integer of at least 2"):
        make_options(EngineOptions, {"context": value})


def test_options_do_not_change():
    with pytest.raises(FrozenInstanceError):
        EngineOptions().context = 3
    with pytest.raises(OptionsError, match=r"^context = 7: give an integer of at least 8"):
        at_least(EngineOptions(context=7), "context", 8)
    at_least(EngineOptions(context=8), "context", 8)


def test_true_is_not_the_number_1():
    options = EngineOptions()
    object.__setattr__(options, "context", True)
    with pytest.raises(OptionsError, match=r"^context = True: give an integer of at least 1"):
        at_least(options, "context", 1)


@pytest.mark.parametrize("phase", PHASES)
def test_the_context_is_the_models_or_what_was_asked_for_below_it(phase):
    assert build(phase).context == CONTEXT
    engine = build(phase, context=9)
    assert engine.context == 9
    (done,) = engine.generate([[5, 6, 7]], SamplingParams(ignore_eos=True))
    assert len(done.prompt_ids) + len(done.token_ids) == 9


@pytest.mark.parametrize("phase", PHASES)
def test_more_context_than_the_model_has_positions_is_refused_not_cut(phase):
    with pytest.raises(OptionsError, match=f"^context = 62: the model has {CONTEXT} positions: give at most that"):
        build(phase, context=CONTEXT + 1)
    assert build(phase, context=CONTEXT).context == CONTEXT


@pytest.mark.parametrize("phase", PHASES)
def test_the_dtype_that_is_asked_for_is_the_weights(phase, tmp_path):
    folder = save_model(FAMILIES["llama-tied"], tmp_path)
    for name in ("float64", "float32", "bfloat16", "float16"):
        engine = load(phase, folder, dtype=name)
        assert engine.dtype == getattr(torch, name)
        assert {parameter.dtype for parameter in engine.model.parameters()} == {getattr(torch, name)}
    assert load(phase, folder).dtype == torch.float64  # auto: as stored
