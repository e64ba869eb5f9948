"""GGUF -> the Hugging Face folder that minfer reads: config, weights, tokenizer, generation settings.

What is converted is what `minfer pull` needs: Llama models with SmolLM's byte-level BPE. The weights are dequantised
to float32, in which every Q4_1 and Q8_0 value is exact (an fp16 scale times a small integer plus an fp16 minimum
needs fewer than 24 bits; float16 would round about 40 % of them, bfloat16 80 %).

Source of the format: the GGUF specification and llama.cpp's `convert_hf_to_gguf.py`, which this inverts.
"""

import json
from collections.abc import Callable
from pathlib import Path
from stat import S_IMODE
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from minfer.core.errors import CheckpointError
from minfer.core.extras import require

TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSOR_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # the value of `tokenizer.ggml.token_type` for <|im_start|> and its like

Progress = Callable[[float], None]


def convert_gguf(source: Path, folder: Path, on_progress: Progress = lambda fraction: None) -> None:
    """Write the model in `source` to the existing `folder`; `on_progress` is told the fraction done, 0 to 1.

    Raises `CheckpointError` for what this converter does not know (architecture, tokenizer, tensor names) and
    `MissingExtra` without the `gguf` package. Needs the float32 weights' size in memory.
    """
    gguf = require("gguf", extra="gguf", purpose="reading GGUF files")
    reader = gguf.GGUFReader(source)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    _check_supported(facts, source)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", model_config(facts, tied))
    _write_json(folder / "generation_config.json", generation_config(facts))
    _write_json(folder / "tokenizer.json", tokenizer_json(facts))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(facts))
    _write_weights(reader.tensors, facts, folder / "model.safetensors", on_progress)


def _check_supported(facts: dict[str, Any], source: Path) -> None:
    for key, supported in {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }.items():
        if facts.get(key) != supported:
            raise CheckpointError(
                f"{source.name} says {key} = {facts.get(key)!r}; only {supported!r} can be converted: "
                "pull the model's safetensors release instead (minfer pull ORG/NAME)"
            )


def model_config(facts: dict[str, Any], tied: bool) -> dict[str, Any]:
    """The `config.json` of a Llama model described by GGUF `facts`."""
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("llama.attention.head_count_kv", heads),
        "head_dim": facts.get("llama.rope.dimension_count", facts["llama.embedding_length"] // heads),
        "max_position_embeddings": facts["llama.context_length"],
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(facts["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(facts.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
    }


def generation_config(facts: dict[str, Any]) -> dict[str, Any]:
    """The `generation_config.json`: which tokens begin, end and pad a text."""
    return {
        f"{role}_token_id": facts[f"tokenizer.ggml.{key}_token_id"]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in facts
    }


def tokenizer_json(facts: dict[str, Any]) -> dict[str, Any]:
    """The `tokenizer.json` of a byte-level BPE with the "smollm" pre-tokenizer: each digit alone, then GPT-2's split.

    No post-processor, hence no BOS: these models are trained without one.
    """
    pieces = facts["tokenizer.ggml.tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": pieces[i], **plain} for i in control_token_ids(facts)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": facts["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    """The `tokenizer_config.json`: the special tokens' roles and the chat template."""
    pieces = facts["tokenizer.ggml.tokens"]
    roles = (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "add_bos_token": facts.get("tokenizer.ggml.add_bos_token", False),
        "clean_up_tokenization_spaces": False,
        **{
            f"{role}_token": pieces[facts[f"tokenizer.ggml.{key}_token_id"]]
            for role, key in roles
            if f"tokenizer.ggml.{key}_token_id" in facts
        },
        "chat_template": facts.get("tokenizer.chat_template"),
    }


def control_token_ids(facts: dict[str, Any]) -> list[int]:
    """The ids of special tokens, in order."""
    return [i for i, kind in enumerate(facts["tokenizer.ggml.token_type"]) if kind == CONTROL_TOKEN]


def _write_weights(tensors: list[Any], facts: dict[str, Any], path: Path, on_progress: Progress) -> None:
    weights = {}
    for i, tensor in enumerate(tensors):
        weights[file_name(tensor.name)] = _dequantised(tensor, facts)
        on_progress((i + 1) / len(tensors))
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(S_IMODE((path.parent / "config.json").stat().st_mode))  # safetensors makes it private to the user


def _dequantised(tensor: Any, facts: dict[str, Any]) -> Tensor:
    """The float32 weight, rows of queries and keys in Hugging Face's order."""
    quants = require("gguf.quants", extra="gguf", purpose="dequantising GGUF tensors")
    weight = torch.from_numpy(np.array(quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    heads = facts["llama.attention.head_count"]
    if tensor.name.endswith("attn_q.weight"):
        return half_split_rows(weight, heads)
    if tensor.name.endswith("attn_k.weight"):
        return half_split_rows(weight, facts.get("llama.attention.head_count_kv", heads))
    return weight


def half_split_rows(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order of a query's or key's rows: (heads * head_dim, in) -> the same shape.

    GGUF Llama models rotate neighbours (rows 2i and 2i + 1 of a head are a pair); Hugging Face's rotate the two halves
    (rows i and i + head_dim / 2).
    """
    pairs = weight.view(heads, -1, 2, weight.shape[1])  # (heads, head_dim / 2, 2, in)
    return pairs.transpose(1, 2).reshape(weight.shape)


def file_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    if gguf_name in TENSOR_NAMES:
        return TENSOR_NAMES[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_TENSOR_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_TENSOR_NAMES[parts[2]]}.weight"
    raise CheckpointError(f"no Hugging Face name is known for the GGUF tensor {gguf_name!r}")


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
