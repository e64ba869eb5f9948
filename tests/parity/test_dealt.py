"""A model that is dealt to ranks, by tensors, by stages and both, gives the answers of `transformers` all the same."""

import pytest

from minfer.course.machines.lockstep import Lockstep
from tests.parity.exact import exact
from tests.parity.families import FAMILIES
from tests.parity.phases import answers, load
from tests.parity.reference import greedy, load_exact, save_model

LAYOUTS = ((2, 1), (1, 2), (2, 2), (1, 3), (3, 1), (4, 1))  # tensor, pipeline: worlds of 2, 3 and 4
PROMPTS, TOKENS = ([3, 1, 4, 1, 5, 9, 2, 6], [15]), [7, 5]
FAMILIES_DEALT = ("llama-grouped", "qwen2", "gpt2", "mistral")


def fits(facts, tensor, pipeline):
    """Whether heads and layers can be dealt so."""
    kv_heads = facts.get("num_key_value_heads", facts.get("n_head"))
    heads = facts.get("num_attention_heads", facts.get("n_head"))
    shared = tensor % kv_heads == 0 and tensor <= heads
    return (tensor <= kv_heads or shared) and pipeline <= facts.get("num_hidden_layers", facts.get("n_layer"))


CASES = [(family, *layout) for family in FAMILIES_DEALT for layout in LAYOUTS if fits(FAMILIES[family], *layout)]


def test_worlds_of_two_three_and_four_are_there_by_tensors_by_stages_and_by_both():
    assert {tensor * pipeline for _, tensor, pipeline in CASES} == {2, 3, 4}
    kinds = {(tensor > 1, pipeline > 1) for _, tensor, pipeline in CASES}
    assert kinds == {(True, False), (False, True), (True, True)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Family -> its folder and `transformers`' answers, made when first asked for."""
    made = {}

    def of(family):
        if family not in made:
            folder = save_model(FAMILIES[family], tmp_path_factory.mktemp(family))
            with exact():
                made[family] = folder, [greedy(load_exact(folder), *one) for one in zip(PROMPTS, TOKENS, strict=True)]
        return made[family]

    return of


@pytest.mark.parametrize(("family", "tensor", "pipeline"), CASES)
@pytest.mark.parametrize("phase", [10, 11])
def test_dealt_models_give_the_tokens_and_logits_of_transformers(saved, family, tensor, pipeline, phase):
    folder, expected = saved(family)
    options = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "ranks": Lockstep(), "graph_batch": 2}
    engine = load(phase, folder, dtype="float64", max_batch=4, num_blocks=40, **options)
    ours = answers(engine, list(PROMPTS), TOKENS, ignore_eos=True)
    engine.close()
    for got, want in zip(ours, expected, strict=True):
        assert got.token_ids == want.token_ids
        assert (got.logits.double() - want.logits).abs().max() < 1e-10
