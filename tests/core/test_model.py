"""The models and the attention seam: shapes, masks, dtypes and tables, each against a formula or `transformers`."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from minfer.core.attention import CausalAttention, Visible, attend, causal_mask
from minfer.core.config import ModelConfig
from minfer.core.model import RMSNorm, Transformer, wide
from minfer.core.models import model_class
from tests.parity.families import FAMILIES
from tests.parity.phases import PHASES, load
from tests.parity.reference import save_model

torch.set_num_threads(1)


def build(family):
    """A random float64 model of a parity family, without a checkpoint."""
    config = ModelConfig.from_dict(FAMILIES[family])
    torch.manual_seed(0)
    return model_class(config)(config).double().requires_grad_(False).eval()


def causal(model):
    return [CausalAttention(window) for window in model.config.windows]


LEADS = ["llama-grouped", "mistral", "qwen3", "gpt2"]


@pytest.mark.parametrize("family", LEADS)
def test_a_batch_gives_what_its_rows_give_alone(family):
    model = build(family)
    ids = torch.randint(0, model.config.vocab_size, (3, 11), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(11).expand(3, 11)
    together = model(ids, positions, causal(model))
    alone = [model(row, torch.arange(11), causal(model)) for row in ids]
    assert together.shape == (3, 11, model.config.vocab_size)
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", LEADS)
@pytest.mark.parametrize("lead", [(11,), (3, 11)])
def test_rows_are_those_of_the_flattened_lead(family, lead):
    model = build(family)
    ids = torch.randint(0, model.config.vocab_size, lead, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(11).expand(lead)
    rows = torch.tensor([10, 0, ids.numel() - 1])
    every = model(ids, positions, causal(model))
    some = model(ids, positions, causal(model), rows)
    torch.testing.assert_close(some, every.flatten(0, -2)[rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", LEADS)
def test_positions_are_taken_from_the_tensor_not_from_the_order(family):
    model = build(family)
    ids = torch.arange(5, 12)
    shifted = model(ids, torch.arange(9, 16), causal(model))
    padded = model(torch.cat([torch.zeros(9, dtype=torch.int64), ids]), torch.arange(16), Offset.layers(model, 9))
    torch.testing.assert_close(shifted, padded[9:], rtol=0, atol=1e-12)
    rows_apart = (model(ids, torch.arange(0, 14, 2), causal(model)) - shifted).abs().max()
    assert rows_apart > 1e-6


class Offset:
    """Causal attention whose first `start` tokens nobody sees."""

    def __init__(self, window, start):
        self.window, self.start = window, start

    @classmethod
    def layers(cls, model, start):
        return [cls(window, start) for window in model.config.windows]

    def __call__(self, q, k, v):
        rows = torch.arange(len(k))
        mask = causal_mask(rows, rows, self.window) & ((rows >= self.start) | (rows[:, None] < self.start))
        return attend(q, Visible(k, v, mask))


def formula(q, k, v, mask):
    """softmax(q·kᵀ/√d)·v head by head, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    heads = []
    for h in range(q.shape[1]):
        group = h // (q.shape[1] // k.shape[1])
        scores = q[:, h] @ k[:, group].T / math.sqrt(q.shape[-1])
        heads.append(scores.masked_fill(~mask, -math.inf).softmax(-1) @ v[:, group])
    return torch.stack(heads, dim=1)


def heads(length, count, seed, dtype=torch.float64):
    return torch.randn(length, count, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("window", [None, 1, 3, 8, 9, 50])
def test_causal_attention_is_the_formula_with_grouped_heads_and_a_window(kv_heads, window):
    q, k, v = heads(9, 6, 0), heads(9, kv_heads, 1), heads(9, kv_heads, 2)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    mask = (distance >= 0) & (distance < (window or 9))
    torch.testing.assert_close(CausalAttention(window)(q, k, v), formula(q, k, v, mask), rtol=0, atol=1e-13)


def test_fewer_queries_than_keys_are_the_last_ones():
    """Lower right, not upper left: 3 new tokens after 6 old ones see 7, 8 and 9 keys."""
    mask = causal_mask(torch.arange(6, 9), torch.arange(9))
    assert mask.sum(-1).tolist() == [7, 8, 9]
    assert causal_mask(torch.arange(6, 9), torch.arange(9), window=4).long().argmax(-1).tolist() == [3, 4, 5]
    q, k, v = heads(3, 6, 0), heads(9, 2, 1), heads(9, 2, 2)
    torch.testing.assert_close(attend(q, Visible(k, v, mask)), formula(q, k, v, mask), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_in_half_precision_loses_the_rounding_of_its_inputs_only(dtype):
    """Scores and softmax in float32: the error is one rounding of the output, not of 200 weights."""
    q, k, v = heads(200, 6, 0, dtype), heads(200, 2, 1, dtype), heads(200, 2, 2, dtype)
    out = CausalAttention()(q, k, v)
    expected = formula(q, k, v, torch.ones(200, 200, dtype=torch.bool).tril())
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_norm_is_that_of_transformers_to_the_last_bit(dtype):
    ours, theirs = RMSNorm(48, 3e-3), LlamaRMSNorm(48, 3e-3)
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(48, generator=generator).to(dtype), torch.randn(7, 48, generator=generator).to(dtype) * 200
    for norm in (ours, theirs):
        norm.weight = torch.nn.Parameter(weight)
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama3", "qwen2-window", "qwen3", "gpt2"])
def test_half_precision_is_as_near_to_float64_as_transformers_is(family, dtype, tmp_path):
    """Both round at the same places but for the rotary table, which ours keeps in float32: no worse by a fifth."""
    folder = save_model(FAMILIES[family], tmp_path)
    ids = torch.randint(0, 103, (40,), generator=torch.Generator().manual_seed(3))

    def error(logits):
        return (logits.double() - exact).pow(2).mean().sqrt().item()

    def ours(dtype_name):
        engine = load(PHASES[-1], folder, dtype=dtype_name)
        return engine.model(ids, torch.arange(40), causal(engine.model))

    exact = ours("float64")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        their_error = error(theirs(ids[None]).logits[0])
    half = ours(str(dtype).removeprefix("torch."))
    assert half.dtype == dtype
    assert 0 < error(half) < 1.2 * their_error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_rotary_table_follows_the_weights_in_a_wide_dtype(dtype):
    model = Transformer(ModelConfig.from_dict(FAMILIES["llama3"])).to(dtype)
    rope = model.config.rope
    assert model.norm.weight.dtype == dtype
    assert torch.equal(model.rotary, rope.table(model.config.head_dim, model.config.context, wide(dtype)))


def test_a_table_of_float64_is_computed_not_widened_from_float32():
    model = Transformer(ModelConfig.from_dict(FAMILIES["llama3"])).double()
    assert not torch.equal(model.rotary, model.rotary.float().double())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("family", ["llama-tied", "qwen3", "gpt2"])
def test_a_tied_head_is_the_embedding_itself_after_loading(family, phase, tmp_path):
    model = load(phase, save_model(FAMILIES[family], tmp_path), dtype="float32").model
    embedding = model.wte if family == "gpt2" else model.embed_tokens
    assert model.lm_head.weight.data_ptr() == embedding.weight.data_ptr()


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_have_the_names_and_number_that_transformers_saves(family, tmp_path):
    """A tied head counts once, as in the file."""
    theirs = AutoModelForCausalLM.from_pretrained(save_model(FAMILIES[family], tmp_path))
    ours = build(family)
    stripped = {name.removeprefix(ours.file_prefix) for name, _ in theirs.named_parameters()}
    assert {name for name, _ in ours.named_parameters()} == stripped
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
