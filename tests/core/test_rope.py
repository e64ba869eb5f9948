"""The rotary tables, against `transformers` at the positions where a wrong scaling shows: up to 131,072."""

import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from minfer.core.errors import ConfigError
from minfer.core.rope import RopeConfig, rotate
from tests.parity.exact import exact

HEAD_DIM = 26
POSITIONS = torch.tensor([0, 1, 2, 511, 4095, 8191, 8192, 8193, 20000, 65535, 100000, 131071])
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES = {
    "default": {"rope_theta": 10000.0},
    "theta at the top level": {"rope_theta": 500000.0},
    "theta nested": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "theta nested and at the top level": {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 500000.0}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 8.0}, "rope_theta": 10000.0},
    "linear, new spelling": {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 300000.0}},
    "both objects": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        "rope_scaling": {"type": "linear", "factor": 8.0},
    },
    "llama 3.1": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, **LLAMA3}},
    "llama 3.2": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, **LLAMA3}},
    "llama 3, nested": {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 9e4, **LLAMA3}},
    "llama 3, other bands": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            **LLAMA3,
            "rope_type": "llama3",
            "factor": 5.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 9.0,
        },
    },
    "yarn": {"rope_theta": 1000000.0, "rope_scaling": YARN},
    "yarn, old spelling": {"rope_scaling": {**YARN, "type": "yarn", "rope_type": "yarn"}},
    "yarn, original context outside": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
        "original_max_position_embeddings": 16384,
    },
    "yarn, factor from the contexts": {"rope_scaling": {**YARN, "factor": None}},
    "yarn, mscale": {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.9}},
    "yarn, one mscale only": {"rope_scaling": {**YARN, "mscale": 0.707}},
    "yarn, attention_factor": {"rope_scaling": {**YARN, "attention_factor": 1.25}},
    "yarn, not truncated": {"rope_scaling": {**YARN, "truncate": False}},
    "yarn, other beta_fast": {"rope_scaling": {**YARN, "beta_fast": 8.0}},
    "yarn, other beta_slow": {"rope_scaling": {**YARN, "beta_slow": 0.25}},
    "yarn, short original context": {"rope_scaling": {**YARN, "original_max_position_embeddings": 256}},
}


def read(facts, context=131072, head_dim=HEAD_DIM):
    return RopeConfig.from_facts({"max_position_embeddings": context, **facts}, head_dim)


def theirs(facts, context=131072):
    """The rotary module of `transformers` for the same facts."""
    facts = {key: dict(value) if isinstance(value, dict) else value for key, value in facts.items()}
    return LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4, max_position_embeddings=context, **facts)
    )


def our_table(rope, dtype, length):
    """Cosines and sines as `transformers` lays them out."""
    cos, signed_sin = rope.table(HEAD_DIM, length, dtype).unbind(1)
    half = HEAD_DIM // 2
    return cos, torch.cat([-signed_sin[:, :half], signed_sin[:, half:]], dim=-1)


@pytest.mark.parametrize("facts", CASES.values(), ids=CASES)
def test_tables_are_those_of_transformers_up_to_position_131071(facts):
    """To 1e-9: an angle of 131,071 radians has an error of 1.5e-11 in float64."""
    with exact():
        expected = theirs(facts)(torch.empty(0, dtype=torch.float64), POSITIONS[None])
    ours = our_table(read(facts), torch.float64, 131072)
    for rows, their_rows in zip(ours, expected, strict=True):
        torch.testing.assert_close(rows[POSITIONS], their_rows[0], rtol=0, atol=1e-9)


def test_a_float32_table_is_the_float64_one_rounded_once():
    rope = read(CASES["llama 3.2"])
    full, narrow = (rope.table(HEAD_DIM, 131072, dtype) for dtype in (torch.float64, torch.float32))
    assert torch.equal(narrow, full.float())


@pytest.mark.parametrize("facts", CASES.values(), ids=CASES)
def test_frequencies_are_those_that_transformers_computes_in_float32(facts):
    """The oracle without our float64 context around it: 3e-6 is 25 roundings of float32."""
    module = theirs(facts)
    torch.testing.assert_close(read(facts).inverse_frequencies(HEAD_DIM).float(), module.inv_freq, rtol=3e-6, atol=0)
    assert read(facts).attention_factor == pytest.approx(module.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("length", [1, 8192, 8193, 9000, 16384, 20480])
def test_dynamic_scaling_stretches_each_row_as_transformers_does_for_a_sequence_that_ends_there(length):
    facts = {"rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 2.5}}
    rope = read(facts, context=8192)
    config = LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4, max_position_embeddings=8192, **facts)
    with exact():
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=length)
        angles = (length - 1) * frequencies
    cos, sin = our_table(rope, torch.float64, length)
    torch.testing.assert_close(cos[-1, : HEAD_DIM // 2], angles.cos(), rtol=0, atol=1e-10)
    torch.testing.assert_close(sin[-1, HEAD_DIM // 2 :], angles.sin(), rtol=0, atol=1e-10)
    assert rope.context(8192) == 20480


@pytest.mark.parametrize("lead", [(7,), (3, 7)])
def test_rotation_is_that_of_transformers_for_flat_and_batched_heads(lead):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(*lead, 5, HEAD_DIM, generator=generator, dtype=torch.float64)
    positions = torch.randint(0, 90, lead, generator=generator)
    rope = RopeConfig()
    cos, sin = our_table(rope, torch.float64, 90)
    expected, _ = apply_rotary_pos_emb(q, q, cos[positions], sin[positions], unsqueeze_dim=-2)
    ours = rotate(q, rope.table(HEAD_DIM, 90, torch.float64)[positions])
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-14)


def test_position_0_is_the_identity_and_scores_depend_on_distances_only():
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, HEAD_DIM, generator=generator, dtype=torch.float64)
    table = RopeConfig(theta=500.0).table(HEAD_DIM, 64, torch.float64)
    assert torch.equal(rotate(q, table[:1]), q)
    scores = [(rotate(q, table[p + 9 : p + 10]) * rotate(k, table[p : p + 1])).sum() for p in (0, 5, 54)]
    assert scores == pytest.approx([scores[0].item()] * 3, rel=1e-12)
    elsewhere = (rotate(q, table[12:13]) * rotate(k, table[:1])).sum().item()
    assert elsewhere != pytest.approx(scores[0].item(), rel=1e-3)


def test_a_half_precision_head_is_turned_in_float32_and_rounded_once():
    x = torch.randn(40, 3, HEAD_DIM, generator=torch.Generator().manual_seed(2)).bfloat16()
    table = RopeConfig().table(HEAD_DIM, 40, torch.float32)
    exact_turn = rotate(x.double(), table.double())
    turned = rotate(x, table)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.double(), exact_turn, rtol=2**-8, atol=1e-6)  # half a unit in the last place


def test_making_a_table_takes_no_memory_to_speak_of_beside_the_table():
    """Llama 3.2's table has 131,072 rows: in one piece its float64 intermediates would be 16 times the result."""

    class Largest(TorchDispatchMode):
        nbytes = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            is_table = function is torch.ops.aten.empty.memory_format
            if isinstance(made, torch.Tensor) and made._base is None and not is_table:
                Largest.nbytes = max(Largest.nbytes, made.nbytes)
            return made

    with Largest():
        table = RopeConfig().table(64, 131072, torch.float32)
    assert 0 < Largest.nbytes < table.nbytes / 16


REFUSED = [
    ({"rope_scaling": {"rope_type": "longrope"}}, "RoPE scaling 'longrope' is not supported; minfer has default,"),
    ({"rope_scaling": {"type": "linear"}}, "RoPE scaling needs 'factor', which is missing"),
    ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "RoPE factor 0.5 is below 1"),
    ({"rope_scaling": {"type": "linear", "factor": "8"}}, "RoPE parameter factor = '8' is not a positive number"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "RoPE scaling needs 'low_freq_factor'"),
    ({"rope_scaling": "linear"}, "rope_scaling or rope_parameters is 'linear', not an object"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters per layer type"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor other than 1"),
    ({"rope_theta": 0}, "RoPE parameter rope_theta = 0 is not a positive number"),
    ({"rope_theta": 1}, "RoPE parameter theta = 1.0 is not above 1.0"),
    (
        {"rope_scaling": {**LLAMA3, "rope_type": "llama3", "factor": 8.0, "high_freq_factor": 1.0}},
        "RoPE parameter high_freq_factor = 1.0 is not above 1.0",
    ),
    ({"rope_scaling": {**YARN, "beta_fast": 0.5}}, "RoPE parameter beta_fast = 0.5 is not above 1.0"),
]


@pytest.mark.parametrize(("facts", "message"), REFUSED)
def test_rotary_facts_that_cannot_be_honoured_are_refused(facts, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        read(facts)


def test_an_odd_head_is_refused():
    with pytest.raises(ConfigError, match=r"^head_dim 25 is odd"):
        read({}, head_dim=25)
