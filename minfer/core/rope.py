"""Rotary position embedding: which angle each pair of channels turns by, and the tables of cosines and sines.

Source: RoFormer (arXiv 2104.09864) for the rotation; the half-split layout of Hugging Face checkpoints: channel i is
paired with channel i + head_dim/2. Scalings: position interpolation (2306.15595), dynamic NTK, YaRN (2309.00071) and
Llama 3.1's wavelength bands, with the parameter names of `rope_parameters` in config.json.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minfer.core.errors import ConfigError, MinferWarning

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn")
PARAMETERS = {
    *("rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings", "partial_rotary_factor"),
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    "truncate",
}
BLOCK = 2048


@dataclass(frozen=True)
class RopeConfig:
    """Rotary facts of a model. `factor` and what follows it are used by the scalings that name them."""

    theta: float = 10000.0
    scaling: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], head_dim: int) -> "RopeConfig":
        """Read `rope_theta` and `rope_scaling` / `rope_parameters` of a config.json. Raises `ConfigError`."""
        if head_dim % 2:
            raise ConfigError(f"head_dim {head_dim} is odd: rotary embedding turns pairs of channels")
        nested = _nested(facts)
        scaling = nested.get("rope_type") or nested.get("type") or "default"
        if scaling not in SCALINGS:
            raise ConfigError(f"RoPE scaling {scaling!r} is not supported; minfer has {', '.join(SCALINGS)}")
        original = _original_context(facts, nested, scaling)
        factor = _factor(nested, scaling, facts["max_position_embeddings"] / original)
        rope = cls(
            theta=_positive(nested, "rope_theta", _positive(facts, "rope_theta", 10000.0)),
            scaling=scaling,
            factor=factor,
            original_context=original,
            low_freq_factor=_positive(nested, "low_freq_factor", 1.0, required=scaling == "llama3"),
            high_freq_factor=_positive(nested, "high_freq_factor", 4.0, required=scaling == "llama3"),
            beta_fast=_positive(nested, "beta_fast", 32.0),
            beta_slow=_positive(nested, "beta_slow", 1.0),
            attention_factor=_attention_factor(nested, factor) if scaling == "yarn" else 1.0,
            truncate=nested.get("truncate") is not False,
        )
        rope._refuse_empty_ranges()
        return rope

    def _refuse_empty_ranges(self) -> None:
        """What the formulas divide by must not be zero, nor of the wrong sign."""
        for above, below in (("theta", 1.0), ("high_freq_factor", self.low_freq_factor), ("beta_fast", self.beta_slow)):
            if getattr(self, above) <= below:
                raise ConfigError(f"RoPE parameter {above} = {getattr(self, above)} is not above {below}")

    def context(self, stated: int) -> int:
        """The longest sequence, where `max_position_embeddings` is `stated`.

        Published files state with `linear` and `dynamic` what is stretched, with `llama3` what it is stretched to, and
        with `yarn` either.
        """
        if self.scaling in ("linear", "dynamic"):
            return int(stated * self.factor)
        return max(stated, int(self.original_context * self.factor)) if self.scaling == "yarn" else stated

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of each channel pair, float64 `(head_dim / 2,)`."""
        frequencies = self.theta ** -_exponents(head_dim)
        if self.scaling == "linear":
            return frequencies / self.factor
        if self.scaling == "llama3":
            return self._llama3(frequencies)
        if self.scaling == "yarn":
            return self._yarn(frequencies, head_dim)
        return frequencies

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Long waves are interpolated, short ones kept, those between blended."""
        turns = self.original_context * frequencies / (2 * math.pi)
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = blend.clamp(0, 1)
        return frequencies * (keep + (1 - keep) / self.factor)

    def _yarn(self, frequencies: Tensor, head_dim: int) -> Tensor:
        """As llama3, but the blend is linear in the channel index, between two numbers of turns."""
        low, high = self._pair_with_turns(self.beta_fast, head_dim), self._pair_with_turns(self.beta_slow, head_dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        width = high - low or 0.001
        pairs = torch.arange(head_dim // 2, dtype=torch.float64, device="cpu")
        interpolate = ((pairs - low) / width).clamp(0, 1)
        return frequencies * (1 - interpolate + interpolate / self.factor)

    def _pair_with_turns(self, turns: float, head_dim: int) -> float:
        """The channel pair that turns `turns` times over the original context."""
        return head_dim * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

    def table(self, head_dim: int, positions: int, dtype: torch.dtype) -> Tensor:
        """Cosines and sines of positions 0 … positions-1, computed in float64: `(positions, 2, head_dim)` on the CPU.

        The sines of the first half of the channels are negated, as `rotate` wants them. A position's row depends on
        that position alone, so cached keys never go stale. Made some rows at a time, to need no memory beside itself.
        """
        table = torch.empty(positions, 2, head_dim, dtype=dtype, device="cpu")
        for start, rows in zip(range(0, positions, BLOCK), table.split(BLOCK), strict=True):
            steps = torch.arange(start, start + len(rows), dtype=torch.float64, device="cpu")[:, None]
            angles = self._angles(steps, head_dim)
            cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
            rows.copy_(torch.stack([torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)], dim=1))
        return table

    def _angles(self, steps: Tensor, head_dim: int) -> Tensor:
        """Of positions `(P, 1)` the angle of each channel pair, `(P, head_dim / 2)`."""
        if self.scaling == "dynamic":
            return steps * self._dynamic(steps + 1, head_dim)
        return steps * self.inverse_frequencies(head_dim)

    def _dynamic(self, length: Tensor, head_dim: int) -> Tensor:
        """Dynamic NTK: the base grows with the length `(positions, 1)` past the original context.

        Row p is stretched as for a sequence that ends at p. This equals `transformers` generating with its cache past
        the original context; a prompt longer than that would be stretched as a whole there, by position here.
        """
        stretch = (self.factor * length / self.original_context - (self.factor - 1)).clamp(min=1)
        theta = self.theta * stretch ** (head_dim / max(head_dim - 2, 1))
        return theta ** -_exponents(head_dim)


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn heads `x` `(*lead, heads, head_dim)` by rows of the table, `rotary` `(*lead, 2, head_dim)`.

    (a, b) becomes (a·cos − b·sin, b·cos + a·sin), where a and b are the two halves of the channels. The arithmetic is
    done in the table's dtype (float32 at least); the result has the dtype of `x`.
    """
    cos, signed_sin = rotary.unsqueeze(-3).unbind(-2)  # (*lead, 1, head_dim) each
    swapped = x.roll(x.shape[-1] // 2, dims=-1)  # (b, a)
    return torch.addcmul(x * cos, swapped, signed_sin).to(x.dtype)


def _exponents(head_dim: int) -> Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim


def _nested(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object of rotary facts: `rope_scaling`, the older name, replaces `rope_parameters` where both are given."""
    nested = facts.get("rope_scaling") or facts.get("rope_parameters") or {}
    if not isinstance(nested, dict):
        raise ConfigError(f"rope_scaling or rope_parameters is {nested!r}, not an object of rotary parameters")
    if any(isinstance(value, dict) for value in nested.values()):
        raise ConfigError("rope_parameters per layer type are not supported: one set for all layers")
    if nested.get("partial_rotary_factor") not in (None, 1):
        raise ConfigError("partial_rotary_factor other than 1 is not supported: it would change the result")
    for key in nested.keys() - PARAMETERS:
        message = f"rope_parameters: {key!r} is unknown to minfer and ignored; if it matters, the answers will be wrong"
        warnings.warn(message, MinferWarning, stacklevel=5)
    return nested


def _original_context(facts: Mapping[str, Any], nested: Mapping[str, Any], scaling: str) -> int:
    """The context before it was stretched; beside the object it comes first, as Phi-3's files have it."""
    stated = facts["max_position_embeddings"]
    if scaling == "dynamic":
        return stated
    key = "original_max_position_embeddings"
    return int(_positive(facts, key, _positive(nested, key, stated)))


def _factor(nested: Mapping[str, Any], scaling: str, ratio: float) -> float:
    """How much longer the context is made; `ratio` is the stated context over the original one."""
    if scaling == "default":
        return 1.0
    factor = _positive(nested, "factor", ratio, required=scaling != "yarn" or ratio == 1)
    if factor < 1:
        raise ConfigError(f"RoPE factor {factor} is below 1: scalings stretch the context")
    return factor


def _attention_factor(nested: Mapping[str, Any], factor: float) -> float:
    """YaRN's temperature, as a scale of cosines and sines (paper section 3.4; DeepSeek's mscale variant)."""
    if nested.get("attention_factor") is not None:
        return _positive(nested, "attention_factor", 1.0)

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator, denominator = nested.get("mscale"), nested.get("mscale_all_dim")
    return scale(numerator) / scale(denominator) if numerator and denominator else scale(1.0)


def _positive(nested: Mapping[str, Any], key: str, default: float, required: bool = False) -> float:
    value = nested.get(key)
    if value is None:
        if required:
            raise ConfigError(f"RoPE scaling needs {key!r}, which is missing from rope_parameters")
        return float(default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"RoPE parameter {key} = {value!r} is not a positive number")
    return float(value)
