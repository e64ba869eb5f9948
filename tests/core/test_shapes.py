"""Named shapes and their random weights: the published sizes, the same values everywhere, and an engine that runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minfer.core.checkpoint.shapes import BLOCK, RandomCheckpoint, RandomTensor, fill_random, is_random, random_config
from minfer.core.errors import CheckpointError, TokenizerError
from minfer.core.hub.published import ALIASES, SHAPES
from minfer.core.models import open_model, skeleton
from minfer.core.params import SamplingParams
from minfer.core.tokenizer.byte_tokenizer import ByteTokenizer
from minfer.phase2 import Engine

# parameters of the releases as their safetensors files count them, a tied head once
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
}


class TestShapes:
    """What `random:<shape>` may name."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_parameter_count_is_the_published_one(self, shape):
        checkpoint = RandomCheckpoint(f"random:{shape}")
        assert sum(checkpoint.sizes.values()) == PUBLISHED[shape]
        assert checkpoint.nbytes == PUBLISHED[shape] * checkpoint.dtype.itemsize

    def test_facts_that_the_count_does_not_show(self):
        assert random_config("mistral-7b").windows == (4096,) * 32
        assert random_config("llama3.2-1b").rope.factor == 32.0
        assert random_config("smollm2-1.7b").rope.theta == 130000.0
        assert random_config("qwen3-0.6b").head_dim * random_config("qwen3-0.6b").num_heads == 2048  # hidden is 1024
        assert random_config("qwen2.5-7b").qkv_bias
        contexts = {shape: random_config(shape).context for shape in ("gpt2", "llama2-7b", "llama3-8b", "qwen3-8b")}
        assert contexts == {"gpt2": 1024, "llama2-7b": 4096, "llama3-8b": 8192, "qwen3-8b": 40960}
        assert RandomCheckpoint("random:llama2-7b").dtype == torch.float16
        assert RandomCheckpoint("random:llama3-8b").dtype == torch.bfloat16

    def test_aliases(self):
        assert ALIASES.keys() == {"1b", "7b"}
        assert random_config("random:7b") == random_config("random:llama2-7b")

    def test_only_the_prefix_asks_for_random_weights(self, tmp_path):
        assert is_random("random:7b")
        assert not any(is_random(model) for model in ("llama2-7b", tmp_path, "my-random:model"))

    def test_an_unknown_shape_lists_what_there_is(self):
        with pytest.raises(
            CheckpointError, match=r"no shape 'lama2-7b'.*did you mean llama2-7b.*There are gpt2, .*mistral"
        ):
            random_config("random:lama2-7b")
        with pytest.raises(CheckpointError, match=r"no shape ''"):
            random_config("random:")


class TestWeights:
    """Random, but never by chance."""

    def test_distribution(self):
        weight = RandomTensor("layers.0.mlp.up_proj.weight", (1500, 800), torch.float32).read()  # 1.2 M: over one block
        assert abs(weight.mean()) < 1e-4
        assert weight.std() == pytest.approx(0.02, rel=0.01)
        assert weight.unique(dim=0).shape[0] == 1500
        rows = torch.nn.functional.normalize(weight, dim=1)
        assert ((rows @ rows.T).fill_diagonal_(0).abs() < 0.25).all()

    def test_norms_are_ones_and_biases_are_not_zero(self):
        checkpoint = RandomCheckpoint("random:gpt2")
        plan = checkpoint.plan(skeleton(checkpoint))
        assert (plan["ln_f.weight"].read() == 1).all()
        assert 0.01 < plan["h.3.attn.c_attn.bias"].read().abs().max() < 0.2

    def test_values_depend_on_seed_and_name_only(self):
        reference = RandomTensor("a.weight", (30, 20), torch.float32, seed=1).read()
        torch.manual_seed(5)
        assert torch.equal(RandomTensor("a.weight", (30, 20), torch.bfloat16, seed=1).read(torch.float32), reference)
        assert torch.equal(
            RandomTensor("a.weight", (30, 20), torch.float16, seed=1).read(), reference.to(torch.float16)
        )
        assert not torch.equal(RandomTensor("b.weight", (30, 20), torch.float32, seed=1).read(), reference)
        assert not torch.equal(RandomTensor("a.weight", (30, 20), torch.float32, seed=2).read(), reference)

    def test_the_same_in_every_process(self):
        assert RandomTensor("x.weight", (2, 3), torch.float32).generator_seed == 4150340144614302129

    def test_global_generator_is_left_alone(self):
        state = torch.get_rng_state()
        RandomTensor("a.weight", (3, 4), torch.float32).read()
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_large_tensor_is_filled_to_its_last_number(self):
        size = 2 * BLOCK + 5
        weight = RandomTensor("embed_tokens.weight", (size, 1), torch.float32).read()
        assert (weight != 0).sum() > size - 5
        assert torch.equal(weight[:5], weight[-5:])

    def test_fill_random_equals_the_plan(self):
        checkpoint = RandomCheckpoint("random:smollm2-135m")
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5)).half()
        fill_random(model, seed=3)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, RandomTensor(name, tuple(parameter.shape), torch.float16, 3).read())
        plan = checkpoint.plan(skeleton(checkpoint))
        assert plan.keys() == set(checkpoint.names)
        assert "lm_head.weight" not in plan  # tied
        assert plan["norm.weight"].seed == 0


class TestByteTokenizer:
    """The text side of models that have no tokenizer files."""

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
    def test_text_comes_back(self, text):
        tokenizer = ByteTokenizer(300)
        ids = tokenizer.encode(text)
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text

    @given(st.lists(st.integers(0, 299)))
    def test_streamed_pieces_join_to_the_decoding(self, ids):
        tokenizer = ByteTokenizer(300)
        decoder = tokenizer.stream_decoder()
        assert "".join(map(decoder.push, ids)) + decoder.finish() == tokenizer.decode(ids)

    def test_ids_that_are_no_bytes_are_seen(self):
        assert ByteTokenizer(49152).decode([72, 105, 49151, 33]) == "Hi<49151>!"

    def test_nothing_is_special(self):
        tokenizer = ByteTokenizer(49152)
        assert (tokenizer.vocab_size, tokenizer.bos_token_id) == (49152, None)
        assert (tokenizer.eos_token_ids, tokenizer.special_ids) == ((), frozenset())
        assert tokenizer.encode("<s>") == [60, 115, 62]

    def test_ids_outside_the_vocabulary(self):
        with pytest.raises(TokenizerError, match=r"token id 300 .* 300"):
            ByteTokenizer(300).decode([1, 300])

    def test_chat(self):
        ids = ByteTokenizer(300).apply_chat_template([{"role": "user", "content": "Hé"}])
        assert ByteTokenizer(300).decode(ids) == "user: Hé\nassistant: "


def test_a_random_model_answers_text(monkeypatch):
    """`random:` works wherever a model is asked for: here through the door that engines use."""
    tiny = dict(SHAPES["smollm2-135m"], num_hidden_layers=2, hidden_size=36, intermediate_size=50, vocab_size=300)
    monkeypatch.setitem(SHAPES, "tiny-smollm", tiny | {"num_attention_heads": 9, "num_key_value_heads": 3})
    checkpoint, tokenizer = open_model("random:tiny-smollm")
    (completion,) = Engine.load("random:tiny-smollm", device="cpu").generate("Hello", SamplingParams(max_tokens=3))
    assert len(completion.token_ids) == 3
    assert completion.text == tokenizer.decode(completion.token_ids)
    assert (checkpoint.config.num_layers, tokenizer.vocab_size) == (2, 300)
