"""ModelConfig: everything in a config.json is honoured, refused or warned about; `transformers` says what is right."""

import json
import warnings

import pytest
from transformers import CONFIG_MAPPING

from minfer.core.config import ModelConfig
from minfer.core.config_keys import DEFAULTS, NEUTRAL
from minfer.core.errors import ConfigError, MinferWarning
from tests.core.published_configs import FACTS, PUBLISHED

TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GPT2LMHeadModel": "gpt2",
}
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def theirs(facts):
    """What `transformers` reads from the same facts, under our names."""
    config = CONFIG_MAPPING[TYPES[facts["architectures"][0]]](**facts)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    eos = config.eos_token_id
    is_gpt2 = config.model_type == "gpt2"
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": (config.n_inner or 4 * config.n_embd) if is_gpt2 else config.intermediate_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": getattr(config, "num_key_value_heads", config.num_attention_heads),
        "head_dim": head_dim,
        "norm_eps": config.layer_norm_epsilon if is_gpt2 else config.rms_norm_eps,
        "activation": config.activation_function if is_gpt2 else config.hidden_act,
        "context": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        "windows": their_windows(config),
    }


def their_windows(config):
    layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def ours(facts):
    config = ModelConfig.from_dict(facts)
    return {key: getattr(config, key) for key in theirs(facts)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_its_facts_and_those_of_transformers_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = ModelConfig.from_dict(PUBLISHED[name])
    assert {key: getattr(config, key) for key in FACTS[name]} == FACTS[name]
    assert ours(PUBLISHED[name]) == theirs(PUBLISHED[name])


@pytest.mark.parametrize("architecture", DEFAULTS)
def test_an_absent_key_means_what_it_means_to_transformers(architecture):
    assert ours({"architectures": [architecture]}) == theirs({"architectures": [architecture]})


NULLS = [
    ("LlamaForCausalLM", {"bos_token_id": None, "eos_token_id": None, "num_key_value_heads": None, "head_dim": None}),
    ("MistralForCausalLM", {"sliding_window": None, "head_dim": None}),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": None, "num_key_value_heads": None}),
    ("Qwen3ForCausalLM", {"num_key_value_heads": None, "num_attention_heads": 16, "layer_types": None}),
    ("GPT2LMHeadModel", {"n_inner": None, "eos_token_id": None}),
]


@pytest.mark.parametrize(("architecture", "nulls"), NULLS)
def test_null_means_what_it_means_to_transformers_not_the_default(architecture, nulls):
    facts = {"architectures": [architecture], **nulls}
    assert ours(facts) == theirs(facts)


def test_a_dump_of_all_that_transformers_4_kept_in_a_config_is_read_without_a_warning():
    """Training tools write every default, and version 4 kept those of generation beside the model's."""
    generation = {"max_length": 20, "do_sample": False, "temperature": 1.0, "top_k": 50, "num_beams": 1}
    generation |= {"repetition_penalty": 1.0, "bad_words_ids": None, "forced_eos_token_id": None, "pruned_heads": {}}
    base = {"use_bfloat16": False, "tie_encoder_decoder": False, "chunk_size_feed_forward": 0, "tokenizer_class": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ModelConfig.from_dict({**SMALL, **generation, **base}) == ModelConfig.from_dict(SMALL)


WINDOWS = [
    {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 9},  # max_window_layers' default is more than there are layers
    {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"] * 2},
]


@pytest.mark.parametrize("facts", WINDOWS)
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwens_windows_are_those_of_transformers(architecture, facts):
    facts = {**SMALL, "architectures": [architecture], "num_hidden_layers": 4, **facts}
    assert ours(facts)["windows"] == theirs(facts)["windows"]


REFUSED = [
    ("partial_rotary_factor", 0.5),
    ("rope_interleaved", True),
    ("quantization_config", {"quant_method": "gptq"}),
    ("attn_logit_softcapping", 50.0),
    ("final_logit_softcapping", 30.0),
    ("query_pre_attn_scalar", 224),
    ("attention_multiplier", 0.1),
    ("embedding_multiplier", 12.0),
    ("residual_multiplier", 0.2),
    ("logits_scaling", 8.0),
    ("logit_scale", 0.06),
    ("clip_qkv", 8.0),
    ("num_experts", 8),
    ("num_local_experts", 8),
    ("no_rope_layers", [1, 0]),
    ("use_mrope", True),
    ("use_qk_norm", True),
    ("scale_attn_weights", False),
    ("scale_attn_by_inverse_layer_idx", True),
    ("add_cross_attention", True),
    ("is_decoder", "no"),
    ("pruned_heads", {"0": [1]}),
]


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_a_value_that_would_change_the_result_is_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=f"^{key} = .* would change the result"):
        ModelConfig.from_dict({**SMALL, key: value})


def test_every_key_that_must_be_neutral_is_in_the_table_above():
    assert {key for key, _ in REFUSED} == NEUTRAL.keys()


@pytest.mark.parametrize("key", sorted(NEUTRAL))
def test_a_neutral_value_is_accepted(key):
    for value in NEUTRAL[key]:
        assert ModelConfig.from_dict({**SMALL, key: value}) == ModelConfig.from_dict(SMALL)


UNKNOWN = [
    {"rotary_style": "new"},
    {"architectures": ["MistralForCausalLM"], "max_window_layers": 3},
    {"sliding_window": 9},  # Llama has none
    {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [2, 1, 1]}},
]


@pytest.mark.parametrize("facts", UNKNOWN)
def test_a_key_that_is_not_honoured_is_warned_about_by_name(facts):
    name = next(reversed({**facts, **facts.get("rope_scaling", {})}))
    with pytest.warns(MinferWarning, match=f"'{name}' is unknown to minfer"):
        ModelConfig.from_dict({**SMALL, **facts})


HONOURED = [
    ({"attention_bias": True}, {"qkv_bias": True, "output_bias": True, "mlp_bias": False}),
    ({"mlp_bias": True}, {"qkv_bias": False, "output_bias": False, "mlp_bias": True}),
    ({"tie_word_embeddings": True}, {"tie_word_embeddings": True}),
    ({"head_dim": 10}, {"head_dim": 10, "hidden_size": 48}),
    ({"head_dim": 10, "hidden_size": 47}, {"head_dim": 10, "hidden_size": 47}),
    ({"hidden_act": "gelu_pytorch_tanh"}, {"activation": "gelu_pytorch_tanh"}),
    ({"eos_token_id": [3, 5, 7]}, {"eos_token_ids": (3, 5, 7)}),
    ({"rms_norm_eps": 1e-3}, {"norm_eps": 1e-3}),
    ({"torch_dtype": "float16"}, {"dtype": "float16"}),
    ({"dtype": "bfloat16"}, {"dtype": "bfloat16"}),
    ({"architectures": None, "model_type": "qwen3"}, {"architecture": "Qwen3ForCausalLM", "qk_norm": True}),
    ({"architectures": ["Qwen2ForCausalLM"]}, {"qkv_bias": True, "output_bias": False, "mlp_bias": False}),
]


@pytest.mark.parametrize(("facts", "expected"), HONOURED)
def test_what_is_honoured_arrives(facts, expected):
    config = ModelConfig.from_dict({**SMALL, **facts})
    assert {key: getattr(config, key) for key in expected} == expected


SCALED_CONTEXTS = [
    ({"rope_type": "dynamic", "factor": 2.5}, 160),
    ({"rope_type": "linear", "factor": 2.0}, 128),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
    ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}, 64),
]


@pytest.mark.parametrize(("scaling", "context"), SCALED_CONTEXTS)
def test_the_context_is_what_the_scaling_stretches_it_to(scaling, context):
    """64 are stated. `linear` and `dynamic` state what they stretch; YaRN may state either; llama3 the stretched."""
    if scaling["rope_type"] == "llama3":
        scaling = {**scaling, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert ModelConfig.from_dict({**SMALL, "rope_scaling": scaling}).context == context


def test_a_file_is_read_like_the_facts_in_it_and_its_path_is_in_the_error(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    assert ModelConfig.from_folder(tmp_path) == ModelConfig.from_dict(SMALL)
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "hidden_act": "mish"}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json: activation 'mish' is not supported"):
        ModelConfig.from_folder(tmp_path)
