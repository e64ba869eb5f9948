"""MemoryBudget: what a model, its cache and a step need of a card's memory, worked out before anything is loaded.

weights       Σ parameters × bytes, with scales where quantised, and the rotary table
KV cache      2 · layers · kv_heads · head_dim · bytes per token, × tokens × sequences
activations   the worst moment of a step: see `Activations`
runtime       what CUDA and torch take for themselves: `RUNTIME_RESERVE`
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from minfer.core.config import ModelConfig
from minfer.core.errors import OptionsError
from minfer.phase2.activations import Activations
from minfer.phase2.parameter_count import ParameterCount, is_gpt2
from minfer.phase2.weight_formats import FORMATS, WeightFormat, find_format

RUNTIME_RESERVE = 2**30
"""1 GiB. A CUDA context is 0.3 GB with lazily loaded kernels and up to 1 GB without (github.com/pytorch/pytorch/issues
/107667 and /28394), the libraries' workspaces are tens of MB, and the allocator rounds up."""

KV_DTYPES = ("float64", "float32", "float16", "bfloat16", "fp8", "int8")
OFFLOAD_BUFFERS = 2
COMPUTE_DTYPE = "bfloat16"
"""What quantised weights are multiplied in, and what the rest of their model is kept in."""


@dataclass(frozen=True)
class MemoryBudget:
    """`memory` bytes, shared out among a model and `batch` sequences of `context` tokens (default: the model's limit).

    `dtype` names a `WeightFormat`; `kv_dtype` is the cache's, by default the one that is computed in. All results are
    bytes. `offload_layers` of the layers stay in host memory, as phase 9 does it: the card has two buffers for them.
    Raises `OptionsError` for what does not exist or is out of range.
    """

    config: ModelConfig
    memory: int
    dtype: str = COMPUTE_DTYPE
    kv_dtype: str | None = None
    batch: int = 1
    context: int | None = None
    reserve: int = RUNTIME_RESERVE
    offload_layers: int = 0

    def __post_init__(self) -> None:
        find_format(self.dtype)
        if self.kv_dtype is not None and self.kv_dtype not in KV_DTYPES:
            raise OptionsError(f"KV dtype {self.kv_dtype!r} is unknown: use {', '.join(KV_DTYPES)}")
        if self.memory < 1:
            raise OptionsError(f"memory = {self.memory} bytes: a card has at least one")
        if self.batch < 1:
            raise OptionsError(f"batch = {self.batch}: give at least 1 sequence")
        if not 0 <= self.offload_layers <= self.config.num_layers:
            given, layers = self.offload_layers, self.config.num_layers
            raise OptionsError(f"offload_layers = {given}: the model has {layers} layers: give 0 to {layers}")
        if not 1 <= self.tokens <= self.config.context:
            raise OptionsError(f"context = {self.tokens} tokens: this model takes 1 to {self.config.context}")

    # ---- the choices ---------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> int:
        """Tokens of each sequence."""
        return self.context if self.context is not None else self.config.context

    @property
    def weight_format(self) -> WeightFormat:
        """How the weights are stored."""
        return find_format(self.dtype)

    @property
    def compute_dtype(self) -> str:
        """What products are computed in: the weights' own dtype, or bfloat16 if they are quantised."""
        return COMPUTE_DTYPE if self.weight_format.is_quantised else self.weight_format.name

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the compute dtype."""
        return FORMATS[self.compute_dtype].bits // 8

    # ---- what things need ----------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> ParameterCount:
        """The model's parameters by part."""
        return ParameterCount.of(self.config)

    @property
    def weights(self) -> int:
        """The model's parameters."""
        return self.parameters.nbytes(self.weight_format)

    @property
    def layer(self) -> int:
        """The weights of one layer."""
        without = ParameterCount.of(replace(self.config, num_layers=0))
        return (self.weights - without.nbytes(self.weight_format)) // self.config.num_layers

    @property
    def weights_on_card(self) -> int:
        """The parameters but for those of offloaded layers, and two buffers for these, or as many as there are."""
        return self.weights - max(0, self.offload_layers - OFFLOAD_BUFFERS) * self.layer

    @property
    def rotary_table(self) -> int:
        """Cosines and sines of every position up to the model's context, in float32 at least; none for GPT-2."""
        return 0 if is_gpt2(self.config) else self.config.context * 2 * self.config.head_dim * max(self.itemsize, 4)

    @property
    def loading_peak(self) -> int:
        """What phase 2 needs while it loads: the final weights and the largest tensor, in the dtype of the weights."""
        return self.weights + self.weight_format.raw_bytes(self.parameters.largest)

    @property
    def kv_itemsize(self) -> int:
        """Bytes of a number in the cache."""
        return FORMATS[self.kv_dtype or self.compute_dtype].bits // 8

    @property
    def kv_per_token(self) -> int:
        """A key and a value per layer and KV head: 2 · layers · kv_heads · head_dim · bytes."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.kv_itemsize

    @property
    def kv_cache(self) -> int:
        """The cache of all sequences at full length. Phase 3 allocates this for one sequence, windows or not."""
        return self.batch * self.tokens * self.kv_per_token

    @property
    def kv_cache_without_gqa(self) -> int:
        """The same with a key and a value for every query head."""
        return self.kv_cache * self.config.num_heads // self.config.num_kv_heads

    @property
    def kv_cache_in_windows(self) -> int:
        """The same if layers with a sliding window kept only what a query can still see, which phase 3 does not."""
        kept = sum(min(self.tokens, window or self.tokens) for window in self.config.windows)
        return self.batch * kept * self.kv_per_token // self.config.num_layers

    @property
    def prefill(self) -> Activations:
        """One prompt of `tokens` tokens at once; the cache's sequences are prefilled one after another."""
        return Activations(self.config, self.itemsize, self.tokens)

    @property
    def decode(self) -> Activations:
        """One token of each sequence."""
        return Activations(self.config, self.itemsize, self.batch, rows=self.batch)

    @property
    def activations(self) -> int:
        """The larger of a prefill's and a decode step's peak."""
        return max(self.prefill.peak, self.decode.peak)

    # ---- what fits -----------------------------------------------------------------------------------------------

    @property
    def needed(self) -> int:
        """Everything together."""
        return self.weights_on_card + self.rotary_table + self.kv_cache + self.activations + self.reserve

    @property
    def free(self) -> int:
        """What is left of the memory; below 0: what is missing."""
        return self.memory - self.needed

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.free >= 0

    def most_sequences(self) -> int:
        """How many sequences of `tokens` tokens fit; 0 if not one does."""
        limit = self.memory // (self.tokens * self.kv_per_token)
        return _largest(limit, lambda batch: replace(self, batch=batch).fits)

    def longest_context(self) -> int:
        """The most tokens that each of `batch` sequences can have, up to the model's limit; 0 if not one fits."""
        return _largest(self.config.context, lambda tokens: replace(self, context=tokens).fits)


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1 … limit that fits, where every smaller one does too; 0 if none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
