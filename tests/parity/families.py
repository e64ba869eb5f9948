"""Config facts of every architecture and quirk that minfer honours, as small models of odd sizes.

No two dimensions of a model are equal where its architecture allows it, so that no transposed or swapped axis fits.
"""

from typing import Any

CONTEXT = 61
VOCAB = 103
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 77,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 3e-3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 32}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 15}
_NO_MULTIPLE = {"hidden_size": 47, "head_dim": 10}
_WINDOW = {"use_sliding_window": True, "sliding_window": 5}


def _llama(**facts: Any) -> dict[str, Any]:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_SIZES, **facts}


def _mistral(**facts: Any) -> dict[str, Any]:
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **_SIZES, **facts}


def _qwen(version: int, **facts: Any) -> dict[str, Any]:
    named = {"architectures": [f"Qwen{version}ForCausalLM"], "model_type": f"qwen{version}"}
    return {**named, **_SIZES, "rope_theta": 1000000.0, **facts}


def _gpt2(**facts: Any) -> dict[str, Any]:
    named = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_positions": CONTEXT}
    sizes = {"n_embd": 42, "n_layer": 3, "n_head": 6, "layer_norm_epsilon": 3e-3}
    return {**named, **sizes, "bos_token_id": 1, "eos_token_id": 2, **facts}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": _llama(num_key_value_heads=6, rope_scaling=None),
    "llama-grouped": _llama(rope_theta=500000.0),
    "llama-tied": _llama(tie_word_embeddings=True),
    "llama-head_dim": _llama(head_dim=14),
    "llama-attention_bias": _llama(attention_bias=True),
    "llama-mlp_bias": _llama(mlp_bias=True, hidden_act="gelu_pytorch_tanh"),
    "llama-relu": _llama(hidden_act="relu", attention_bias=True, mlp_bias=True),
    "llama-theta-nested": _llama(rope_parameters={"rope_type": "default", "rope_theta": 700.0}),
    "llama3": _llama(rope_theta=500.0, rope_scaling=_LLAMA3, tie_word_embeddings=True),
    "llama3-nested": _llama(rope_parameters={"rope_theta": 500.0, **_LLAMA3}),
    "linear": _llama(rope_scaling={"type": "linear", "factor": 2.0}, max_position_embeddings=31),
    "linear-nested": _llama(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 900.0}),
    "dynamic": _llama(rope_scaling={"type": "dynamic", "factor": 2.5}, max_position_embeddings=24),
    "dynamic-nested": _llama(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 900.0}, max_position_embeddings=30
    ),
    "yarn": _llama(rope_scaling=_YARN, rope_theta=1000.0),
    "yarn-old-spelling": _llama(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 15}),
    "yarn-mscale": _llama(rope_parameters={**_YARN, "rope_theta": 1000.0, "mscale": 0.7, "mscale_all_dim": 1.3}),
    "yarn-attention_factor": _llama(rope_parameters={**_YARN, "rope_theta": 1000.0, "attention_factor": 1.4}),
    "yarn-not-truncated": _llama(rope_scaling={**_YARN, "truncate": False}, rope_theta=100.0),
    "mistral": _mistral(sliding_window=5),
    "mistral-window-of-2": _mistral(sliding_window=2),
    "mistral-no-window": _mistral(sliding_window=None, rope_theta=1000000.0),
    "mistral-no-multiple": _mistral(sliding_window=7, **_NO_MULTIPLE),
    "qwen2": _qwen(2, use_sliding_window=False, sliding_window=5, max_window_layers=1),
    "qwen2-window": _qwen(2, **_WINDOW, max_window_layers=1, tie_word_embeddings=True),
    "qwen2-layer_types": _qwen(2, **_WINDOW, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "qwen2-yarn": _qwen(2, rope_scaling=_YARN),
    "qwen3": _qwen(3, **_NO_MULTIPLE, tie_word_embeddings=True),
    "qwen3-window": _qwen(3, **_WINDOW, head_dim=14, max_window_layers=2, attention_bias=True),
    "gpt2": _gpt2(),
    "gpt2-untied": _gpt2(n_inner=91, tie_word_embeddings=False, activation_function="gelu"),
}
