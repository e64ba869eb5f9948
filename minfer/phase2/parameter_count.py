"""ParameterCount: how many numbers a model holds and where, from its config alone."""

from dataclasses import dataclass

from minfer.core.config import ModelConfig
from minfer.phase2.weight_formats import WeightFormat


@dataclass(frozen=True)
class LinearShape:
    """y = W·x + b with W (rows, columns), found `copies` times in the model. Phase 6 would quantise W, not b."""

    part: str
    rows: int
    columns: int
    bias: bool = False
    copies: int = 1

    @property
    def weights(self) -> int:
        """Numbers in W, all copies together."""
        return self.copies * self.rows * self.columns

    @property
    def biases(self) -> int:
        """Numbers in b, all copies together."""
        return self.copies * self.rows * self.bias


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by part; a head that is tied to the embedding is counted there, once."""

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int
    linears: tuple[LinearShape, ...]
    largest: int
    """Numbers in the largest single tensor."""

    @classmethod
    def of(cls, config: ModelConfig) -> "ParameterCount":
        """Count the parameters of the model that this config describes."""
        linears = tuple(linear_layers(config))
        sizes = {part: sum(x.weights + x.biases for x in linears if x.part == part) for part in _PARTS}
        vocabulary = config.vocab_size * config.hidden_size
        positions = config.context * config.hidden_size if is_gpt2(config) else 0
        matrices = [linear.rows * linear.columns for linear in linears]
        return cls(
            **sizes,
            embedding=vocabulary + positions,
            norms=_norms(config),
            linears=linears,
            largest=max(vocabulary, positions, *matrices),
        )

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head

    @property
    def quantisable(self) -> int:
        """Weights of linear layers. Embeddings, norms, biases and a tied head stay as they are."""
        return sum(linear.weights for linear in self.linears)

    def nbytes(self, weight_format: WeightFormat) -> int:
        """Bytes of the model: linear layers with their scales; beside quantised ones, the rest is kept in 16 bits."""
        kept = self.total - self.quantisable
        kept_bytes = 2 * kept if weight_format.is_quantised else weight_format.raw_bytes(kept)
        return self.matrix_bytes(weight_format) + kept_bytes

    def matrix_bytes(self, weight_format: WeightFormat) -> int:
        """Bytes of the weights of all linear layers in the format, with their scales."""
        return sum(linear.copies * weight_format.matrix_bytes(linear.rows, linear.columns) for linear in self.linears)


_PARTS = ("attention", "mlp", "head")


def linear_layers(config: ModelConfig) -> list[LinearShape]:
    """Every linear layer of the model, equal ones together."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if is_gpt2(config):
        projections = [LinearShape("attention", query + 2 * kv, hidden, config.qkv_bias, layers)]
    else:
        projections = [LinearShape("attention", query, hidden, config.qkv_bias, layers)]
        projections += [LinearShape("attention", kv, hidden, config.qkv_bias, 2 * layers)]
    heads = [] if config.tie_word_embeddings else [LinearShape("head", config.vocab_size, hidden)]
    return [
        *projections,
        LinearShape("attention", hidden, query, config.output_bias, layers),
        LinearShape("mlp", inner, hidden, config.mlp_bias, layers if is_gpt2(config) else 2 * layers),
        LinearShape("mlp", hidden, inner, config.mlp_bias, layers),
        *heads,
    ]


def is_gpt2(config: ModelConfig) -> bool:
    """Whether positions are learned, q, k and v one product, norms biased and the MLP ungated."""
    return config.rope is None


def _norms(config: ModelConfig) -> int:
    """Two norms per layer and a last one; RMSNorm has a weight, LayerNorm a bias too; q and k may have their own."""
    per_norm = config.hidden_size * (2 if is_gpt2(config) else 1)
    heads = 2 * config.head_dim if config.qk_norm else 0
    return (2 * config.num_layers + 1) * per_norm + config.num_layers * heads
