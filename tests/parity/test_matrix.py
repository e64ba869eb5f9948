"""Every phase × every config family × prompts of one token, many, and up to the context: `transformers`' answers.

Tokens must be equal and the logits of every step within 1e-10, in float64 throughout on both sides (`exact.py`).
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from minfer.core.config import ModelConfig
from tests.parity.answer import Answer
from tests.parity.exact import exact
from tests.parity.families import CONTEXT, FAMILIES
from tests.parity.phases import PHASES, answers, load
from tests.parity.reference import greedy, load_exact, save_model

torch.set_num_threads(1)
TOLERANCE = 1e-10  # they differ by at most 4e-13; the smallest margin between two best logits is 9e-4


@dataclass(frozen=True)
class Case:
    """One family's model on disk, its prompts, and how many tokens to ask for (None: until the context is full)."""

    facts: dict
    folder: Path

    @cached_property
    def context(self) -> int:
        return ModelConfig.from_dict(self.facts).context

    @cached_property
    def prompts(self) -> list[list[int]]:
        words = torch.randint(0, self.facts["vocab_size"], (CONTEXT,), generator=torch.Generator().manual_seed(7))
        stated = self.facts.get("max_position_embeddings", CONTEXT)  # a longer prompt is stretched otherwise by theirs
        longest = stated if "dynamic" in json.dumps(self.facts) else self.context - 3
        return [words[:length].tolist() for length in (1, 19, longest)]

    max_tokens = (11, 9, None)

    @cached_property
    def expected(self) -> list[Answer]:
        with exact():
            return self.answers(lambda: load_exact(self.folder))

    def answers(self, make_model) -> list[Answer]:
        """A fresh model per prompt: theirs keeps the stretched frequencies of dynamic scaling from call to call."""
        wanted = [
            most or self.context - len(prompt) for prompt, most in zip(self.prompts, self.max_tokens, strict=True)
        ]
        return [greedy(make_model(), prompt, count) for prompt, count in zip(self.prompts, wanted, strict=True)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Family name -> its `Case`, made when first asked for."""
    made: dict[str, Case] = {}

    def case(name: str) -> Case:
        if name not in made:
            folder = save_model(FAMILIES[name], tmp_path_factory.mktemp(name), words=FAMILIES[name]["vocab_size"] - 6)
            made[name] = Case(FAMILIES[name], folder)
        return made[name]

    return case


def assert_same(ours: list[Answer], expected: list[Answer], tolerance: float = TOLERANCE) -> None:
    for number, (one, right) in enumerate(zip(ours, expected, strict=True)):
        assert one.token_ids == right.token_ids, f"prompt {number}"
        torch.testing.assert_close(one.logits.double(), right.logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_phase_gives_the_tokens_and_logits_of_transformers(cases, family, phase):
    case = cases(family)
    engine = load(phase, case.folder, dtype="float64")
    assert_same(answers(engine, case.prompts, case.max_tokens, ignore_eos=True), case.expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_is_what_transformers_answers_without_our_float64_around_it(cases, family):
    """Norms, softmax and rotary in float32 as it ships: the same tokens, and logits within 2e-4 (1.2e-4 seen)."""
    case = cases(family)
    plain = case.answers(lambda: AutoModelForCausalLM.from_pretrained(case.folder, dtype=torch.float64).eval())
    assert_same(plain, case.expected, tolerance=2e-4)
    tokens = case.expected[0].token_ids + case.expected[1].token_ids
    assert len(set(tokens)) > len(tokens) / 3, "a model that repeats itself tests little"


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_weights_give_the_same_tokens(cases, family):
    case = cases(family)
    engine = load(PHASES[-1], case.folder, dtype="float32")
    ours = answers(engine, case.prompts, case.max_tokens, ignore_eos=True)
    assert_same(ours, case.expected, tolerance=3e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_that_transformers_saves_reads_like_the_one_it_was_given(family, tmp_path):
    save_model(FAMILIES[family], tmp_path)
    AutoModelForCausalLM.from_pretrained(tmp_path).config.save_pretrained(tmp_path)
    saved = ModelConfig.from_folder(tmp_path)
    given = ModelConfig.from_dict({**FAMILIES[family], "dtype": saved.dtype})
    assert saved == given


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "gpt2-untied"])
def test_a_sharded_checkpoint_gives_the_same_answers(tmp_path, family, phase):
    folder = save_model(FAMILIES[family], tmp_path, max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    prompts = [[3, 1, 4], [15, 9]]
    model = load_exact(folder)
    with exact():
        expected = [greedy(model, prompt, 5) for prompt in prompts]
    assert_same(answers(load(phase, folder, dtype="float64"), prompts, [5, 5], ignore_eos=True), expected)


@pytest.mark.parametrize("phase", PHASES)
def test_several_end_tokens_of_the_generation_config_end_where_transformers_ends(cases, tmp_path, phase):
    """The end tokens are ones that the model does write: each prompt meets one, at another step."""
    folder = save_model(FAMILIES["llama-grouped"], tmp_path)
    case = cases("llama-grouped")
    ends = [case.expected[0].token_ids[4], case.expected[1].token_ids[6]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    model = load_exact(folder)
    with exact():
        expected = [greedy(model, prompt, 11, eos_token_ids=ends) for prompt in case.prompts[:2]]
    assert {answer.token_ids[-1] for answer in expected} == set(ends)
    assert len({len(answer.token_ids) for answer in expected}) == 2
    engine = load(phase, folder, dtype="float64")
    assert_same(answers(engine, case.prompts[:2], [11, 11]), expected)
    reasons = [(one.finish_reason.value, one.stop_reason) for one in engine.generate(case.prompts[:2])]
    assert reasons == [("stop", answer.token_ids[-1]) for answer in expected]
