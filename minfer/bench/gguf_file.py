"""GGUF files of a model that is in memory, so that llama.cpp runs on the very same weights.

Source of the format and of llama.cpp's names: the GGUF specification; its orders are those that `gguf_convert` undoes.
"""

from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from minfer.core.config import ModelConfig
from minfer.core.errors import CheckpointError
from minfer.core.extras import require
from minfer.core.hub.gguf_convert import LAYER_TENSOR_NAMES, TENSOR_NAMES

KINDS = {"f32": "F32", "f16": "F16", "q8_0": "Q8_0"}
"""How weights can be stored, and what GGUF calls it. Norms stay in float32, as llama.cpp wants them."""
Q8_GROUP = 32  # weights that share a scale

LAYER_NAMES = {ours: theirs for theirs, ours in LAYER_TENSOR_NAMES.items()}
OTHER_NAMES = {ours.removeprefix("model."): theirs for theirs, ours in TENSOR_NAMES.items()}


def why_not(config: ModelConfig, kind: str) -> str:
    """Why such a model cannot be written in one of `KINDS`; empty if it can."""
    widths = (config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size)
    if kind == "q8_0" and any(width % Q8_GROUP for width in widths):
        return f"q8_0 is made of groups of {Q8_GROUP}: the widths {widths} are no multiples of it"
    if config.architecture != "LlamaForCausalLM":
        return f"{config.architecture} is not written as GGUF"
    if config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm:
        return "biases and query norms are not written as GGUF"
    if config.rope is None or config.rope.scaling != "default" or any(config.windows):
        return "scaled rotary tables and windows are not written as GGUF"
    return ""


def write_gguf(model: nn.Module, kind: str, path: Path) -> None:
    """Write a `Transformer` in one of `KINDS`; without a vocabulary, so prompts are token ids.

    Raises `CheckpointError` for a model that cannot be written, `MissingExtra` without the `gguf` package.
    """
    gguf = require("gguf", extra="gguf", purpose="writing GGUF files")
    config = cast(ModelConfig, model.config)
    if reason := why_not(config, kind):
        raise CheckpointError(f"{path.name}: {reason}")
    writer = gguf.GGUFWriter(path, "llama")
    _add_facts(writer, config)
    for name, parameter in model.named_parameters():  # a tied head is there once, as the embedding
        weight = _ordered(name, parameter.detach().float(), config)
        stored = gguf.GGMLQuantizationType[KINDS[kind] if weight.dim() > 1 else "F32"]
        data = gguf.quants.quantize(np.ascontiguousarray(weight.numpy()), stored)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_facts(writer: Any, config: ModelConfig) -> None:
    assert config.rope is not None
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")


def _ordered(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    """The weight with llama.cpp's order of a query's or key's rows, where a rotated pair are neighbours."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return weight
    halves = weight.view(heads, 2, -1, weight.shape[1])  # (heads, 2, head_dim / 2, in)
    return halves.transpose(1, 2).reshape(weight.shape)


def _gguf_name(name: str) -> str:
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    _, layer, *middle = name.removesuffix(".weight").split(".")
    return f"blk.{layer}.{LAYER_NAMES['.'.join(middle)]}.weight"
