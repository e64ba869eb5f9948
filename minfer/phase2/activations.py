"""Activations: the largest set of intermediate tensors that is alive at one moment of a step."""

from dataclasses import dataclass

from minfer.core.attention import MASK_BYTES
from minfer.core.config import ModelConfig
from minfer.phase2.parameter_count import is_gpt2


@dataclass(frozen=True)
class Activations:
    """Bytes that a forward of `tokens` tokens, with logits of `rows` of them, needs beside weights and cache.

    Layers run one after another, so the peak is that of one layer, or of the head. It is counted from the forward of
    `Transformer`: which tensors exist at once, each by its shape. `itemsize` is that of the compute dtype; rotary
    arithmetic, sampling and the like are done in float32 at least. Attention is taken to be fused, as torch's is on
    CPUs and on GPUs in 16 bits: the T × T scores are never there.
    """

    config: ModelConfig
    itemsize: int
    tokens: int
    rows: int = 1

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        return max(self.turning, self.attending, self.mlp, self.logits, self.making_mask)

    @property
    def turning(self) -> int:
        """q is turned by its angles: x·cos, the swapped halves, the sum; the halves in float32 too, from 16 bits."""
        if is_gpt2(self.config):
            return 0
        normed = self._query if self.config.qk_norm else 0
        wider = self._wide if self._wide > self.itemsize else 0
        turned = self._query * (self.itemsize + 2 * self._wide + wider)
        return self._layer(self._projected + normed) + self.tokens * turned + self._masked_pairs

    @property
    def attending(self) -> int:
        """q, k, v and the result; with it what the kernel makes of a mask's bools, and after it the projection."""
        beside = max(self._masked_pairs, self.tokens * self.config.hidden_size) * self.itemsize
        return self._layer(self._projected + self._query) + beside + self._masked_pairs

    @property
    def mlp(self) -> int:
        """Gated: the activated gate, up and their product; otherwise the product before and after its activation."""
        products = self.config.intermediate_size * (2 if is_gpt2(self.config) else 3)
        return self._layer(self.config.hidden_size + products) + self._masked_pairs

    @property
    def logits(self) -> int:
        """Rows of the vocabulary: as the head makes them, a wide copy, and the running sum that a draw needs."""
        return self.rows * self.config.vocab_size * (self.itemsize + self._wide + 8)

    @property
    def making_mask(self) -> int:
        """Layers with a sliding window need a mask, made by comparing positions, in wider numbers than it is kept."""
        return self._masked_pairs * MASK_BYTES

    def _layer(self, channels: int) -> int:
        """`channels` numbers per token, beside the layer's input as it came and normalised, and its rotary rows."""
        rotary = 0 if is_gpt2(self.config) else 2 * self.config.head_dim * self._wide
        return self.tokens * ((2 * self.config.hidden_size + channels) * self.itemsize + rotary)

    @property
    def _query(self) -> int:
        return self.config.num_heads * self.config.head_dim

    @property
    def _projected(self) -> int:
        return self._query + 2 * self.config.num_kv_heads * self.config.head_dim

    @property
    def _masked_pairs(self) -> int:
        windowed = any(window is not None and window < self.tokens for window in self.config.windows)
        return self.tokens**2 if windowed else 0

    @property
    def _wide(self) -> int:
        return max(self.itemsize, 4)
