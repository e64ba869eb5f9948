"""The architecture of `tiny`, its loss through minfer's own forward pass, and its weights on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tiny_tokens import VOCABULARY, TokenStream
from torch import Tensor, nn

from minfer.core.config import ModelConfig
from minfer.core.model import Transformer

FOLDER = Path(__file__).resolve().parent.parent / "minfer" / "assets" / "tiny"
SEED, CONTEXT = 1603, 512
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


class TrainingAttention:
    """Causal attention with the KV heads repeated first: on a CPU a quarter faster than leaving that to the kernel."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (B, T, heads, D), k and v (B, T, KV heads, D) -> (B, T, heads, D)."""
        k, v = (x.repeat_interleave(q.shape[-2] // x.shape[-2], dim=-2) for x in (k, v))
        out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
        return out.transpose(1, 2)


def new_model() -> Transformer:
    """Seeded weights: normal with deviation 0.02, smaller where a layer writes to the residual stream."""
    torch.manual_seed(SEED)
    model = Transformer(ModelConfig.from_dict(LLAMA))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LLAMA["num_hidden_layers"]) if writes else 0.02)
        else:
            nn.init.ones_(parameter)
    return model


def token_losses(model: Transformer, rows: Tensor) -> Tensor:
    """Nats for each predicted token: rows (B, T + 1) -> (B * T,), 0 where the row is padded with -1."""
    inputs, targets = rows[:, :-1].clamp_min(0), rows[:, 1:]
    positions = torch.arange(inputs.shape[1]).expand_as(inputs)
    logits = model(inputs, positions, [TrainingAttention()] * LLAMA["num_hidden_layers"])
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1, reduction="none")


@torch.no_grad()
def held_out_loss(model: Transformer, stream: TokenStream) -> float:
    """Mean nats per token over the whole held-out stream, in windows of the full context."""
    blocks = stream.blocks(CONTEXT)
    total = sum(float(token_losses(model, rows).sum()) for rows in blocks.split(16))
    return total / (len(stream.ids) - 1)


def export(model: Transformer) -> None:
    """Write the configuration and model.safetensors as Hugging Face names it: bfloat16, the tied head left out."""
    write_configuration()
    weights = {
        f"model.{name}": tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, FOLDER / "model.new", metadata={"format": "pt"})
    (FOLDER / "model.new").replace(FOLDER / "model.safetensors")


def shipped_model() -> Transformer:
    """The model as it is in the package, in float32."""
    model = Transformer(ModelConfig.from_folder(FOLDER))
    weights = load_file(FOLDER / "model.safetensors")
    state = {name.removeprefix("model."): tensor.float() for name, tensor in weights.items()}
    model.load_state_dict(state | {"lm_head.weight": state["embed_tokens.weight"]})
    return model.eval()


def write_configuration() -> None:
    """Write config.json and generation_config.json."""
    end_tokens = {"bos_token_id": LLAMA["bos_token_id"], "eos_token_id": LLAMA["eos_token_id"]}
    for name, content in {"config.json": LLAMA, "generation_config.json": end_tokens}.items():
        (FOLDER / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
