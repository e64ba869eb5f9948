"""Published shapes by name: the facts that decide a result in the Hugging Face `config.json` of each model.

`tests/core/test_shapes.py` holds them against the published parameter counts.
"""

from typing import Any

ALIASES = {"1b": "llama3.2-1b", "7b": "llama2-7b"}
SIZE_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


def _facts(architecture: str, sizes: tuple[int, ...], **others: Any) -> dict[str, Any]:
    facts = {"architectures": [architecture], "hidden_act": "silu", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
    return {**facts, **dict(zip(SIZE_KEYS, sizes, strict=True)), **others}


def _llama(*sizes: int, **others: Any) -> dict[str, Any]:
    return _facts("LlamaForCausalLM", sizes, **others)


def _llama32(*sizes: int) -> dict[str, Any]:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return _llama(*sizes, rope_theta=500000.0, rope_scaling=scaling, tie_word_embeddings=True)


def _qwen(version: int, *sizes: int, **others: Any) -> dict[str, Any]:
    return _facts(f"Qwen{version}ForCausalLM", sizes, rms_norm_eps=1e-6, rope_theta=1000000.0, **others)


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    facts = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024, "torch_dtype": "float32"}
    return {**facts, "n_embd": hidden, "n_layer": layers, "n_head": heads}


# in the order of SIZE_KEYS: vocabulary, hidden, intermediate, layers, heads, KV heads, context
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "llama2-7b": _llama(32000, 4096, 11008, 32, 32, 32, 4096, torch_dtype="float16"),
    "llama2-13b": _llama(32000, 5120, 13824, 40, 40, 40, 4096, torch_dtype="float16"),
    "llama2-70b": _llama(32000, 8192, 28672, 80, 64, 8, 4096, torch_dtype="float16"),
    "llama3-8b": _llama(128256, 4096, 14336, 32, 32, 8, 8192, rope_theta=500000.0),
    "llama3.2-1b": _llama32(128256, 2048, 8192, 16, 32, 8, 131072),
    "llama3.2-3b": _llama32(128256, 3072, 8192, 28, 24, 8, 131072),
    "mistral-7b": _facts("MistralForCausalLM", (32000, 4096, 14336, 32, 32, 8, 32768), sliding_window=4096),
    "qwen2.5-0.5b": _qwen(2, 151936, 896, 4864, 24, 14, 2, 32768, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen(2, 152064, 3584, 18944, 28, 28, 4, 131072),
    "qwen3-0.6b": _qwen(3, 151936, 1024, 3072, 28, 16, 8, 40960, head_dim=128, tie_word_embeddings=True),
    "qwen3-8b": _qwen(3, 151936, 4096, 12288, 36, 32, 8, 40960, head_dim=128),
    "smollm2-135m": _llama(49152, 576, 1536, 30, 9, 3, 8192, rope_theta=100000.0, tie_word_embeddings=True),
    "smollm2-360m": _llama(49152, 960, 2560, 32, 15, 5, 8192, rope_theta=100000.0, tie_word_embeddings=True),
    "smollm2-1.7b": _llama(49152, 2048, 8192, 24, 32, 32, 8192, rope_theta=130000.0, tie_word_embeddings=True),
    "tinyllama-1.1b": _llama(32000, 2048, 5632, 22, 32, 4, 2048),
}
