"""GPT2: the same interface as `Transformer` for GPT-2: learned positions, LayerNorm, one fused q/k/v product.

Names of parameters are those of Hugging Face files without a leading `transformer.`. Files hold the products as
Conv1D, (in, out); here they are `nn.Linear`, (out, in), and the loader transposes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from minfer.core.attention import Attention
from minfer.core.config import ModelConfig
from minfer.core.model import ACTIVATIONS


class GPT2Attention(nn.Module):
    """q, k and v in one product, split into thirds."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.c_attn = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.c_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, attend: Attention) -> Tensor:
        """x `(*lead, hidden)` -> `(*lead, hidden)`."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(attend(q, k, v).flatten(-2))


class GPT2MLP(nn.Module):
    """proj(act(fc(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.hidden_size, config.intermediate_size)
        self.c_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, hidden)` -> `(*lead, hidden)`."""
        return self.c_proj(self.activation(self.c_fc(x)))


class GPT2Block(nn.Module):
    """One layer: attention, then the MLP, each on a normalised copy and added back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.attn = GPT2Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = GPT2MLP(config)

    def forward(self, x: Tensor, attend: Attention) -> Tensor:
        """x `(*lead, hidden)` -> `(*lead, hidden)`."""
        x = x + self.attn(self.ln_1(x), attend)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """GPT-2 with the forward of `Transformer`."""

    file_prefix = "transformer."
    ignored_in_file: tuple[str, ...] = (r"\.attn\.bias$", r"\.attn\.masked_bias$")  # the causal mask as a buffer

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.context, config.hidden_size)
        self.h = nn.ModuleList(GPT2Block(config) for _ in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()

    @staticmethod
    def stored_transposed(name: str) -> bool:
        """Conv1D weights are stored (in, out)."""
        return name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))

    def tie(self) -> None:
        """Make the head the embedding's own parameter, if the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.wte.weight

    def make_tables(self) -> None:
        """Positions are learned: there is no table to build."""

    def forward(
        self, input_ids: Tensor, positions: Tensor, attention: Sequence[Attention], rows: Tensor | None = None
    ) -> Tensor:
        """As `Transformer.forward`: logits `(R, vocab)` of `rows`, or `(*lead, vocab)`."""
        x = self.wte(input_ids) + self.wpe(positions)
        for layer, attend in zip(self.h, attention, strict=True):
            x = layer(x, attend)
        if rows is not None:
            x = x.flatten(0, -2)[rows]
        return self.lm_head(self.ln_f(x))
