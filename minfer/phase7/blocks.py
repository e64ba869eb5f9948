"""Fused blocks: a layer cut where attention is, each half with as few products as it can have.

    enter   x -> q, k, v                     norm, one product for q, k and v, rotary
    leave   x, attended -> x                 output product, norm, one product for gate and up, down product

What lies between two attentions is `leave` of a layer and `enter` of the next: that is the region that is compiled.
"""

from typing import Any, cast

from torch import Tensor, nn

from minfer.core.gpt2 import GPT2Block
from minfer.core.model import Block
from minfer.core.rope import rotate
from minfer.phase7.merge import merged, take


class FusedBlock(nn.Module):
    """A layer of the Llama family with two merged products. Takes its parts out of `block`."""

    linear = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")

    def __init__(self, block: Block) -> None:
        super().__init__()
        attention, mlp = block.self_attn, block.mlp
        self.head_dim = attention.head_dim
        parts = [cast(Any, take(attention, name)) for name in ("q_proj", "k_proj", "v_proj")]
        self.widths = [part.out_features for part in parts]
        self.kv_heads = self.widths[1] // self.head_dim
        self.group = self.widths[0] // self.widths[1]  # query heads of one key and value head
        self.input_layernorm = block.input_layernorm
        self.qkv_proj = merged(parts)
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        self.o_proj = take(attention, "o_proj")
        self.post_attention_layernorm = block.post_attention_layernorm
        self.gate_up_proj = merged([take(mlp, "gate_proj"), take(mlp, "up_proj")])
        self.down_proj = take(mlp, "down_proj")
        self.activation = mlp.activation

    def enter(self, x: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `(*lead, hidden)`, rotary `(*lead, 2, head_dim)` -> rotated q and k, and v, as attention takes them."""
        parts = self.qkv_proj(self.input_layernorm(x)).split(self.widths, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        return rotate(self.q_norm(q), rotary), rotate(self.k_norm(k), rotary), v

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """x `(*lead, hidden)` and what attention gave, `(*lead, heads · head_dim)` -> `(*lead, hidden)`."""
        x = x + self.o_proj(attended)
        gate, up = self.gate_up_proj(self.post_attention_layernorm(x)).chunk(2, dim=-1)
        return x + self.down_proj(self.activation(gate) * up)


class FusedGPT2Block(nn.Module):
    """A layer of GPT-2, whose q, k and v are one product already. Takes its parts out of `block`."""

    linear = ("c_attn", "o_proj", "c_fc", "c_proj")

    def __init__(self, block: GPT2Block) -> None:
        super().__init__()
        self.head_dim = block.attn.head_dim
        self.ln_1, self.ln_2 = block.ln_1, block.ln_2
        self.c_attn = take(block.attn, "c_attn")
        self.kv_heads, self.group = self.c_attn.out_features // 3 // self.head_dim, 1  # type: ignore[operator]
        self.o_proj = take(block.attn, "c_proj")
        self.c_fc = take(block.mlp, "c_fc")
        self.c_proj = take(block.mlp, "c_proj")
        self.activation = block.mlp.activation

    def enter(self, x: Tensor, rotary: None) -> tuple[Tensor, Tensor, Tensor]:
        """x `(*lead, hidden)` -> q, k, v; positions were added to the embedding."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        return q, k, v

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """x `(*lead, hidden)` and what attention gave, `(*lead, heads · head_dim)` -> `(*lead, hidden)`."""
        x = x + self.o_proj(attended)
        return x + self.c_proj(self.activation(self.c_fc(self.ln_2(x))))
