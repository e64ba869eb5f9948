"""StepCost: the arithmetic and the traffic that a step cannot do without, from the config and the sizes."""

from typing import NamedTuple

from minfer.core.config import ModelConfig
from minfer.phase10 import ShardPlan


class Cost(NamedTuple):
    """Of one step."""

    flops: float
    bytes_read: float
    bytes_written: float
    comm_bytes: float


class StepCost:
    """Formulas with the model's numbers put in: N tokens, of which R have logits, over contexts sᵢ, qᵢ of each new.

    flops      2·N·(weights of all layers' products) + 2·R·vocab·hidden + 4·layers·heads·head_dim·Σ qᵢ·sᵢ
               a product of (N, in) and (in, out) is 2 · N · in · out; attention does two over every context, masked or
               not: half of a prompt's are masked out, and computed
    read       all weights once, and the keys and values of Σ sᵢ tokens
    written    the keys and values of N tokens
    comm       activations between ranks: see `phase10.Communication`; 0 for one rank

    All is of this rank: its layers, heads, channels, and rows of the head. The gathering of pages, activations and
    padding come on top: the figures are what must be, not what is.
    """

    def __init__(self, config: ModelConfig, weight_bytes: int, kv_itemsize: int, plan: ShardPlan | None = None) -> None:
        """`config` and `weight_bytes` are the shard's, where the model is dealt by `plan`."""
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        gated = config.rope is not None  # GPT-2's MLP has no gate
        mlp = config.intermediate_size * (3 if gated else 2)
        layer = config.hidden_size * (2 * query + 2 * kv + mlp)
        self.per_token = 2 * config.num_layers * layer
        self.per_row = 2 * (plan.head_rows if plan else config.vocab_size) * config.hidden_size
        self.per_pair = 4 * config.num_layers * query
        self.weight_bytes = weight_bytes
        self.kv_bytes = config.kv_numbers_per_token * kv_itemsize
        self.communication = plan.communication(kv_itemsize) if plan else None

    def of(self, tokens: int, rows: int, pairs: int, context: int) -> Cost:
        """`tokens` N, `rows` R, `pairs` Σ qᵢ·sᵢ, `context` Σ sᵢ."""
        flops = tokens * self.per_token + rows * self.per_row + pairs * self.per_pair
        said = self.communication.of(tokens, rows) if self.communication else 0
        return Cost(flops, self.weight_bytes + context * self.kv_bytes, tokens * self.kv_bytes, said)
