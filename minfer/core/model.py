"""Transformer: the Llama family by the facts of its config, one definition for all eleven phases.

    x ← embed(ids);  per layer  x ← x + attention(norm(x));  x ← x + mlp(norm(x));  logits ← head(norm(x))

The forward assumes only that hidden is the last dimension: `(T,)`, `(B, T)` and flat `(N,)` inputs are the same to it.
Names of parameters are those of Hugging Face files without their leading `model.`.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minfer.core.attention import Attention
from minfer.core.config import ModelConfig
from minfer.core.rope import rotate

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of tables, norms and softmax for weights of `dtype`: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight over the last dimension, computed in float32 at least (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x `(*, size)`."""
        full = x.to(wide(x.dtype))
        scale = torch.rsqrt(full.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (full * scale).to(x.dtype)


class SelfAttention(nn.Module):
    """Projections and rotary embedding around the layer's attention, which the caller brings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotary: Tensor, attend: Attention) -> Tensor:
        """x `(*lead, hidden)`, rotary `(*lead, 2, head_dim)` -> `(*lead, hidden)`."""
        q, k, v = self.project(x)
        q = rotate(self.q_norm(q), rotary)
        k = rotate(self.k_norm(k), rotary)
        return self.o_proj(attend(q, k, v).flatten(-2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `(*lead, hidden)` -> q `(*lead, heads, head_dim)`, k and v `(*lead, kv_heads, head_dim)`."""
        heads = (-1, self.head_dim)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return q.unflatten(-1, heads), k.unflatten(-1, heads), v.unflatten(-1, heads)


class GatedMLP(nn.Module):
    """down(act(gate(x)) · up(x)) (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, hidden)` -> `(*lead, hidden)`."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention, then the MLP, each on a normalised copy and added back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, rotary: Tensor, attend: Attention) -> Tensor:
        """x `(*lead, hidden)`, rotary `(*lead, 2, head_dim)` -> `(*lead, hidden)`."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """A decoder of the Llama family: Llama 2/3, SmolLM2, TinyLlama, Mistral, Qwen2/2.5, Qwen3."""

    file_prefix = "model."
    ignored_in_file: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()
        self.make_tables()

    @staticmethod
    def stored_transposed(name: str) -> bool:
        """Whether files hold this parameter as (in, out); the Llama family stores (out, in), as we do."""
        return False

    def tie(self) -> None:
        """Make the head the embedding's own parameter, if the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def make_tables(self) -> None:
        """Build the rotary table on the device of the weights; called again whenever they move from `meta`."""
        weight, rope = self.embed_tokens.weight, self.config.rope
        assert rope is not None
        dtype, made = wide(weight.dtype), getattr(self, "rotary", None)
        if weight.is_meta or (made is not None and made.dtype == dtype and made.device == weight.device):
            return
        self.rotary: Tensor = rope.table(self.config.head_dim, self.config.context, dtype).to(weight.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        """`.to()`, `.double()` … move the parameters; the table follows in its own, wide dtype."""
        super()._apply(fn, recurse)
        self.make_tables()
        return self

    def forward(
        self, input_ids: Tensor, positions: Tensor, attention: Sequence[Attention], rows: Tensor | None = None
    ) -> Tensor:
        """Logits of the positions that `rows` names.

        `input_ids`, `positions`: int64 of one shape `(*lead,)`. `attention[i]` is layer i's. `rows`: int64 `(R,)`,
        indices into the flattened lead; None: all. Returns `(R, vocab)`, or `(*lead, vocab)` without rows.
        """
        x = self.embed_tokens(input_ids)
        rotary = self.rotary[positions]
        for layer, attend in zip(self.layers, attention, strict=True):
            x = layer(x, rotary, attend)
        if rows is not None:
            x = x.flatten(0, -2)[rows]
        return self.lm_head(self.norm(x))
