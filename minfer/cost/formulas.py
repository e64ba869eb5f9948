"""Work: the bytes and the arithmetic of one step, from the model's config and the step's sizes.

A step computes qᵢ new tokens of each request i over a context of sᵢ tokens, the new ones included; N = Σ qᵢ, R rows
have logits. P are the weights of all layers' products, V the vocabulary, d the hidden size, H heads of h numbers.

    products     2·N·P + 2·R·V·d FLOPs; every weight is read once, whatever N is; the head's too if it is tied
    attention    4·layers·H·h·Σ qᵢ·sᵢ FLOPs (masked or not: half of a prompt's pairs are masked out, and computed)
    KV           2·layers·kv_heads·h numbers a token: Σ sᵢ are read, N are written
    gathering    a paged cache copies what is read beforehand: each number is read and written once more

(The arithmetic is the one of Kipply, "Transformer Inference Arithmetic", and of the JAX scaling book.)
"""

from dataclasses import dataclass
from typing import NamedTuple

from minfer.core.config import ModelConfig
from minfer.phase2.parameter_count import ParameterCount
from minfer.phase2.weight_formats import FORMATS, WeightFormat, find_format
from minfer.phase11.step_cost import StepCost


class Step(NamedTuple):
    """What a step computes."""

    queries: tuple[int, ...]  # new tokens of each request; with padding, as many as the longest has
    contexts: tuple[int, ...]  # tokens that each attends to, the new ones included
    rows: int  # of logits
    gathered: int = 0  # tokens whose keys and values are copied together before they are read

    @property
    def tokens(self) -> int:
        """N."""
        return sum(self.queries)

    @property
    def pairs(self) -> int:
        """Σ qᵢ·sᵢ."""
        return sum(query * context for query, context in zip(self.queries, self.contexts, strict=True))

    @classmethod
    def decode(cls, contexts: list[int], block_size: int = 0) -> "Step":
        """One token of each request; with a paged cache, over the blocks of the longest for each."""
        if not block_size:
            return cls((1,) * len(contexts), tuple(contexts), len(contexts))
        width = -(-max(contexts) // block_size) * block_size
        return cls((1,) * len(contexts), (width,) * len(contexts), len(contexts), width * len(contexts))

    @classmethod
    def prefill(cls, tokens: int) -> "Step":
        """One whole prompt."""
        return cls((tokens,), (tokens,), 1)


@dataclass(frozen=True)
class Product:
    """The linear layers of the blocks, or the head: how many weights, in how many bytes, for how many rows."""

    part: str  # "layers" or "head"
    weights: int
    nbytes: int
    rows: int

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each weight and row."""
        return 2 * self.weights * self.rows


@dataclass(frozen=True)
class Work:
    """One step's bytes and FLOPs."""

    products: tuple[Product, ...]
    attention_flops: int
    kv_read: int
    kv_written: int
    copied: int

    @property
    def weights_read(self) -> int:
        """Bytes of all weights that products read."""
        return sum(product.nbytes for product in self.products)

    @property
    def flops(self) -> int:
        """Of products and attention."""
        return sum(product.flops for product in self.products) + self.attention_flops

    @property
    def nbytes(self) -> int:
        """What must be moved: weights, and keys and values. The gathering is not among it: it could be done without."""
        return self.weights_read + self.kv_read + self.kv_written


class Formulas:
    """A model's numbers put in. `weights` is its linear layers' format, `computed` that of rows and of the cache."""

    def __init__(self, config: ModelConfig, weights: str = "float32", computed: str | None = None) -> None:
        self.config = config
        self.format = find_format(weights)
        self.computed = computed or ("bfloat16" if self.format.is_quantised else self.format.name)
        self.itemsize = FORMATS[self.computed].bits // 8
        self.cost = StepCost(config, 0, self.itemsize)
        self.counted = ParameterCount.of(config)
        self.head_weights = config.vocab_size * config.hidden_size
        self.layer_weights = sum(one.weights for one in self.counted.linears if one.part != "head")

    def work(self, step: Step) -> Work:
        """What this step takes."""
        cost = self.cost.of(step.tokens, step.rows, step.pairs, sum(step.contexts))
        return Work(
            products=(
                Product("layers", self.layer_weights, self.layer_bytes, step.tokens),
                Product("head", self.head_weights, self.head_bytes, step.rows),
            ),
            attention_flops=self.cost.per_pair * step.pairs,
            kv_read=int(cost.bytes_read),
            kv_written=int(cost.bytes_written),
            copied=2 * step.gathered * self.cost.kv_bytes,
        )

    @property
    def layer_bytes(self) -> int:
        """Bytes of the weights of all layers' products, scales with them; biases are not weights."""
        linears = [one for one in self.counted.linears if one.part != "head"]
        return sum(one.copies * self.format.matrix_bytes(one.rows, one.columns) for one in linears)

    @property
    def head_bytes(self) -> int:
        """A tied head is the embedding, which stays in 16 bits beside quantised layers; its own one is quantised."""
        config = self.config
        kept = self.format.is_quantised and config.tie_word_embeddings
        chosen: WeightFormat = find_format(self.computed) if kept else self.format
        return chosen.matrix_bytes(config.vocab_size, config.hidden_size)
