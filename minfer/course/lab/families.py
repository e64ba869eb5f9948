"""The model families that an engine must serve, as config.json dicts of tiny, odd sizes drawn from a seed."""

import random
from dataclasses import dataclass
from typing import Any

EOS = 2
BOS = 1
EPS = 3e-3  # large, so that an engine that does not read it from the config is far off


@dataclass(frozen=True)
class Sizes:
    """Sizes of a tiny model. No two are equal, nor the products of heads: a wrong axis or transpose cannot fit."""

    vocab: int
    hidden: int
    ffn: int
    heads: int
    head_dim: int
    context: int
    window: int
    layers: int = 2
    kv_heads: int = 3

    @classmethod
    def draw(cls, seed: int) -> "Sizes":
        """Sizes that depend on the seed, so that no answer can be written down beforehand."""
        choose = random.Random(seed).choice
        heads = choose((9, 12))
        return cls(
            vocab=choose((97, 101, 103, 107)),
            hidden=heads * choose((7, 8) if heads == 9 else (5, 7)),
            ffn=choose((75, 77, 79, 91)),
            heads=heads,
            head_dim=choose((14, 16, 18)),
            context=choose((37, 41, 43)),
            window=choose((4, 6)),
        )


def family_facts(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Family name -> the dict of its config.json. Together they show every quirk that minfer honours."""
    common = {
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.ffn,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": EPS,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
    }
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **common, "rope_theta": 10000.0}
    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **common, "rope_theta": 5000.0}
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **common, "rope_theta": 20000.0}
    qwen3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **common, "rope_theta": 20000.0}
    qwen3["hidden_size"] = sizes.hidden + 1  # no multiple of the heads: allowed, since head_dim is given
    sliding = {"use_sliding_window": True, "sliding_window": sizes.window}
    mixed = ["full_attention", "sliding_attention"]
    return {
        "llama": llama,
        "tied": {**llama, "tie_word_embeddings": True},
        "mha": {**llama, "num_key_value_heads": sizes.heads},
        "biased": {**llama, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
        "llama3": {**llama, **_scaled(_llama3(sizes), theta=50000.0), "tie_word_embeddings": True},
        "linear": {**llama, "rope_scaling": {"type": "linear", "factor": 2.5}},
        "dynamic": {
            **llama,
            "max_position_embeddings": sizes.context // 2,
            "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        },
        "yarn": {**llama, **_scaled(_yarn(sizes), theta=10000.0)},
        "mistral": {**mistral, "sliding_window": sizes.window},
        "qwen2": {**qwen2, "use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0},
        "qwen2-windows": {**qwen2, **sliding, "max_window_layers": 1, "tie_word_embeddings": True},
        "qwen3": {**qwen3, **sliding, "layer_types": mixed},
        "gpt2": _gpt2(sizes),
    }


def _scaled(scaling: dict[str, Any], theta: float) -> dict[str, Any]:
    """RoPE facts in their newer place: the base is nested too."""
    return {"rope_theta": None, "rope_parameters": {"rope_theta": theta, **scaling}}


def _llama3(sizes: Sizes) -> dict[str, Any]:
    original = sizes.context // 2
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
    return {"rope_type": "llama3", "factor": 4.0, **bands}


def _yarn(sizes: Sizes) -> dict[str, Any]:
    original = sizes.context // 2
    return {"rope_type": "yarn", "factor": sizes.context / original, "original_max_position_embeddings": original}


def _gpt2(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": sizes.vocab,
        "n_positions": sizes.context,
        "n_embd": sizes.heads * sizes.head_dim,
        "n_inner": sizes.ffn,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": EPS,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": True,
    }
