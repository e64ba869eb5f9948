"""Prompts of every kind become checked sequences, the same in every phase, before anything is run."""

import numpy as np
import pytest
import torch

from minfer.core.config import ModelConfig
from minfer.core.errors import RequestError, TokenizerError
from minfer.core.model import Transformer
from minfer.core.prompts import PromptReader
from minfer.core.sampling import SamplingParams
from minfer.core.tokenizer.byte_tokenizer import ByteTokenizer
from tests.parity.families import FAMILIES
from tests.parity.phases import PHASES, engine_class

torch.set_num_threads(1)
VOCAB, CONTEXT = 300, 40
READER = PromptReader(ByteTokenizer(VOCAB), VOCAB, CONTEXT, ())
CHAT = [{"role": "user", "content": "hi"}]


def read(prompts, params=None, reader=READER):
    return reader.sequences(prompts, params, arrived=0.0)


KINDS = [
    ("ab", [[97, 98]]),
    (["ab", "c"], [[97, 98], [99]]),
    ([5, 6, 7], [[5, 6, 7]]),
    ((5, 6, 7), [[5, 6, 7]]),
    ([np.int64(5), np.int32(6)], [[5, 6]]),
    ([[5, 6], [7]], [[5, 6], [7]]),
    ([[5, 6], "c"], [[5, 6], [99]]),
    (CHAT, [list(b"user: hi\nassistant: ")]),
    ([CHAT, "c", [5]], [list(b"user: hi\nassistant: "), [99], [5]]),
    ([], []),
]


@pytest.mark.parametrize(("prompts", "ids"), KINDS)
def test_one_prompt_or_a_list_of_any_kinds_is_understood(prompts, ids):
    made = read(prompts)
    assert [sequence.prompt_ids for sequence in made] == ids
    assert all(type(token) is int for sequence in made for token in sequence.prompt_ids)


def test_what_was_asked_comes_back_with_the_answer():
    first, second = read(["ab", [5, 6]])
    assert (first.prompt, second.prompt) == ("ab", [5, 6])


def test_one_set_of_parameters_is_for_all_and_a_list_is_one_each():
    short, long = SamplingParams(max_tokens=1), SamplingParams(max_tokens=9)
    assert [one.params for one in read(["a", "b"], short)] == [short, short]
    assert [one.params for one in read(["a", "b"], [long, short])] == [long, short]
    assert [one.params for one in read(["a", "b"])] == [SamplingParams()] * 2


def test_n_samples_of_a_prompt_stand_in_a_row_with_seeds_of_their_own():
    made = read(["a", "b"], [SamplingParams(n=2, seed=1), SamplingParams(n=3, seed=1)])
    assert [(one.prompt, one.index) for one in made] == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert len({one.seed for one in made[2:]}) == 3
    made[0].token_ids.append(7)
    assert made[1].token_ids == [97]


def test_the_end_tokens_are_the_tokenizers_and_without_one_the_configs():
    assert read([[5]], reader=PromptReader(None, VOCAB, CONTEXT, (7, 9)))[0].end_ids == (7, 9)
    tokenizer = ByteTokenizer(VOCAB)
    tokenizer.eos_token_ids = (11,)
    assert read([[5]], reader=PromptReader(tokenizer, VOCAB, CONTEXT, (7, 9)))[0].end_ids == (11,)


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_refuses_before_it_runs_anything_and_names_the_prompt(phase):
    engine = build(phase)
    engine.forward = engine.run = None  # calling either would be a TypeError
    for prompts, kind, message in [
        ([[5], []], RequestError, "prompt 1: the prompt is empty"),
        ([[5], [VOCAB]], RequestError, "prompt 1: token id 300 is outside the vocabulary (0 … 299)"),
        ([[5], [5] * 41], RequestError, "prompt 1: prompt has 41 tokens, the context is 40: shorten it"),
        ([[5], "\ud800"], TokenizerError, "prompt 1: "),
        ([], RequestError, "2 sampling parameters for 0 prompts"),
    ]:
        with pytest.raises(kind) as caught:
            engine.generate(prompts, [SamplingParams()] * 2)
        assert str(caught.value).startswith(message)
    with pytest.raises(RequestError, match=r"^the prompt is empty"):  # at the call, not at the first piece
        engine.stream([])


def build(phase):
    config = ModelConfig.from_dict({**FAMILIES["mistral"], "vocab_size": VOCAB, "max_position_embeddings": CONTEXT})
    torch.manual_seed(phase)
    kind = engine_class(phase)
    return kind(Transformer(config).double(), ByteTokenizer(VOCAB), kind.Options())


@pytest.mark.parametrize("phase", PHASES)
def test_a_prompt_may_fill_the_context_where_no_token_is_asked_for_and_must_leave_room_for_one_otherwise(phase):
    engine = build(phase)
    full = [5] * CONTEXT
    (done,) = engine.generate([full], SamplingParams(max_tokens=0))
    assert (done.text, done.token_ids, done.finish_reason.value) == ("", [], "length")
    with pytest.raises(RequestError, match=r"^prompt has 40 tokens, the context is 40: one token must fit after it"):
        engine.generate([full])
    (done,) = engine.generate([full[1:]], SamplingParams(max_tokens=None, ignore_eos=True))
    assert (len(done.token_ids), done.finish_reason.value, done.stop_reason) == (1, "length", None)


@pytest.mark.parametrize("phase", PHASES)
def test_no_tokens_asked_for_is_an_empty_answer_in_any_company_and_as_a_stream(phase):
    engine = build(phase)
    params = [SamplingParams(max_tokens=3), SamplingParams(max_tokens=0), SamplingParams(max_tokens=3)]
    made = engine.generate(["abc", "abc", "abc"], params)
    assert [len(one.token_ids) for one in made] == [3, 0, 3]
    assert made[0].token_ids == made[2].token_ids
    assert list(engine.stream("abc", SamplingParams(max_tokens=0))) == []
    assert engine.generate([]) == []


@pytest.mark.parametrize("phase", PHASES)
def test_the_pieces_of_a_stream_join_to_the_text_of_generate(phase):
    engine = build(phase)
    params = SamplingParams(max_tokens=25, temperature=1.5, seed=3, stop=["a", "é"])
    (done,) = engine.generate("abc", params)
    assert "".join(engine.stream("abc", params)) == done.text


@pytest.mark.parametrize("phase", PHASES)
def test_a_stream_that_is_closed_early_leaves_the_engine_as_it_was(phase):
    engine = build(phase)
    expected = build(phase).generate("xyz", SamplingParams(max_tokens=8))
    stream = engine.stream("abc", SamplingParams(max_tokens=30, temperature=2.0, seed=1))
    next(stream)
    stream.close()
    again = engine.generate("xyz", SamplingParams(max_tokens=8))
    assert [one.token_ids for one in again] == [one.token_ids for one in expected]


@pytest.mark.parametrize("phase", PHASES)
def test_n_1_is_the_first_of_n_3(phase):
    engine = build(phase)
    params = {"temperature": 1.0, "seed": 4, "max_tokens": 6}
    (single,) = engine.generate("abc", SamplingParams(**params))
    several = engine.generate("abc", SamplingParams(**params, n=3))
    assert several[0].token_ids == single.token_ids
    assert len({tuple(one.token_ids) for one in several}) == 3
    assert [one.index for one in several] == [0, 1, 2]
