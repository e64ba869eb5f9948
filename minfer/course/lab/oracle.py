"""Oracle: what a model must answer, computed in numpy from the published formulas, with nothing of `minfer.core`.

It reads the plain config.json dict and the tensors as a checkpoint file names and stores them, and computes every
position of a sequence at once in float64, without a cache. Slow and plain on purpose: one formula per line.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray


class Layer(NamedTuple):
    """What one layer's attention worked with: rotated keys and values `(T, kv_heads, head_dim)`."""

    keys: Array
    values: Array


class Oracle:
    """The answers of one model: `facts` is its config.json, `weights` its tensors by their names in the file."""

    def __init__(self, facts: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        self.facts = facts
        self.weights = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
        self.run = self._gpt2 if facts["model_type"] == "gpt2" else self._llama

    def logits(self, token_ids: Sequence[int]) -> Array:
        """Logits of every position, `(T, vocab)`: row t is what follows `token_ids[: t + 1]`."""
        return self.run(token_ids)[0]

    def layers(self, token_ids: Sequence[int]) -> list[Layer]:
        """Each layer's keys and values of every position."""
        return self.run(token_ids)[1]

    def greedy(self, token_ids: Sequence[int], steps: int) -> tuple[list[int], Array]:
        """The likeliest `steps` tokens after `token_ids`, and the logits `(steps, vocab)` that say so."""
        known, rows = list(token_ids), []
        for _ in range(steps):
            rows.append(self.logits(known)[-1])
            known.append(int(rows[-1].argmax()))
        return known[len(token_ids) :], np.array(rows).reshape(steps, -1)

    def _linear(self, x: Array, name: str) -> Array:
        """x·Wᵀ + b, with W stored (out, in); the bias where there is one."""
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    # ---- the Llama family ----------------------------------------------------------------------------------------

    def _llama(self, token_ids: Sequence[int]) -> tuple[Array, list[Layer]]:
        facts, layers = self.facts, []
        x = self.weights["model.embed_tokens.weight"][list(token_ids)]
        for i in range(facts["num_hidden_layers"]):
            name = f"model.layers.{i}"
            attended, layer = self._attention(self._rms_norm(x, f"{name}.input_layernorm"), i)
            layers.append(layer)
            x = x + attended
            h = self._rms_norm(x, f"{name}.post_attention_layernorm")
            gate = ACTIVATIONS[facts["hidden_act"]](self._linear(h, f"{name}.mlp.gate_proj"))
            x = x + self._linear(gate * self._linear(h, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")
        head = "model.embed_tokens" if facts["tie_word_embeddings"] else "lm_head"
        return self._linear(self._rms_norm(x, "model.norm"), head), layers

    def _rms_norm(self, x: Array, name: str) -> Array:
        mean_square = (x * x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.facts["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def _attention(self, x: Array, i: int) -> tuple[Array, Layer]:
        facts, name = self.facts, f"model.layers.{i}.self_attn"
        heads = facts["num_attention_heads"]
        head_dim = facts.get("head_dim") or facts["hidden_size"] // heads
        q, k, v = (self._linear(x, f"{name}.{p}_proj").reshape(len(x), -1, head_dim) for p in "qkv")
        if f"{name}.q_norm.weight" in self.weights:
            q, k = self._rms_norm(q, f"{name}.q_norm"), self._rms_norm(k, f"{name}.k_norm")
        turn = rotation(facts, head_dim, len(x))
        q, k = rotated(q, turn), rotated(k, turn)
        out = softmax_attention(q, k, v, visible(len(x), window_of(facts, i)))
        return self._linear(out, f"{name}.o_proj"), Layer(k, v)

    # ---- GPT-2 ---------------------------------------------------------------------------------------------------

    def _gpt2(self, token_ids: Sequence[int]) -> tuple[Array, list[Layer]]:
        facts, layers = self.facts, []
        embedding = self.weights["transformer.wte.weight"]
        x = embedding[list(token_ids)] + self.weights["transformer.wpe.weight"][: len(token_ids)]
        for i in range(facts["n_layer"]):
            name = f"transformer.h.{i}"
            fused = self._conv1d(self._layer_norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn")
            q, k, v = (part.reshape(len(x), facts["n_head"], -1) for part in np.split(fused, 3, axis=-1))
            layers.append(Layer(k, v))
            x = x + self._conv1d(softmax_attention(q, k, v, visible(len(x), None)), f"{name}.attn.c_proj")
            h = self._conv1d(self._layer_norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")
            x = x + self._conv1d(ACTIVATIONS[facts["activation_function"]](h), f"{name}.mlp.c_proj")
        return self._layer_norm(x, "transformer.ln_f") @ embedding.T, layers

    def _conv1d(self, x: Array, name: str) -> Array:
        """x·W + b, with W stored (in, out)."""
        return x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _layer_norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self.facts["layer_norm_epsilon"])
        return centred / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def _tanh_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
}


def visible(length: int, window: int | None) -> Array:
    """Which keys each query sees: itself and what precedes it, the last `window` in all; bool `(T, T)`."""
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    return (distance >= 0) & (distance < (window or length))


def window_of(facts: Mapping[str, Any], layer: int) -> int | None:
    """The sliding window of a layer: Mistral's in all; Qwen's where it is switched on, by layer."""
    family = facts["model_type"]
    if family not in ("mistral", "qwen2", "qwen3") or (family != "mistral" and not facts.get("use_sliding_window")):
        return None
    if "layer_types" in facts:
        slides = facts["layer_types"][layer] == "sliding_attention"
    else:
        slides = family == "mistral" or layer >= facts["max_window_layers"]
    return facts.get("sliding_window") if slides else None


def softmax_attention(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """softmax(q·kᵀ/√head_dim)·v per query head h with key/value head h // group; heads joined, `(T, heads·dim)`."""
    group = q.shape[1] // k.shape[1]
    out = []
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // group].T / math.sqrt(q.shape[2])
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out.append(weights / weights.sum(axis=-1, keepdims=True) @ v[:, head // group])
    return np.concatenate(out, axis=-1)


def rotated(x: Array, turn: Array) -> Array:
    """Turn x `(T, heads, head_dim)`: channels i and i + head_dim/2 are one complex number; turn `(T, head_dim/2)`."""
    half = x.shape[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * turn[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def rotation(facts: Mapping[str, Any], head_dim: int, length: int) -> Array:
    """The factor of each position and channel pair, complex `(length, head_dim/2)`, with the config's scaling."""
    rope = {**(facts.get("rope_parameters") or {}), **(facts.get("rope_scaling") or {})}
    theta = rope.get("rope_theta") or facts.get("rope_theta") or 10000.0
    kind = rope.get("rope_type") or rope.get("type") or "default"
    steps = np.arange(length, dtype=np.float64)[:, None]
    exponents = np.arange(0, head_dim, 2) / head_dim
    base, scale = np.full((length, 1), theta), 1.0
    if kind == "dynamic":  # the base grows with the sequence: position p is turned as when the sequence ends there
        stretch = rope["factor"] * (steps + 1) / facts["max_position_embeddings"] - (rope["factor"] - 1)
        base = theta * np.maximum(stretch, 1) ** (head_dim / (head_dim - 2))
    frequencies = base**-exponents
    if kind == "linear":
        frequencies = frequencies / rope["factor"]
    if kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    if kind == "yarn":
        frequencies = _yarn(frequencies, rope, theta, head_dim)
        scale = 0.1 * math.log(rope["factor"]) + 1
    return scale * np.exp(1j * steps * frequencies)


def _llama3(frequencies: Array, rope: Mapping[str, Any]) -> Array:
    """Llama 3.1: waves longer than original/low are slowed, shorter than original/high kept, blended between."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / frequencies
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    kept_or_blended = np.where(wavelengths < original / high, frequencies, blended)
    return np.where(wavelengths > original / low, frequencies / factor, kept_or_blended)


def _yarn(frequencies: Array, rope: Mapping[str, Any], theta: float, head_dim: int) -> Array:
    """YaRN: pairs that turn often over the original context are kept, rare ones slowed, a linear ramp between."""

    def pair_that_turns(times: float) -> float:
        original = rope["original_max_position_embeddings"]
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair_that_turns(rope.get("beta_fast", 32))), 0)
    last = min(math.ceil(pair_that_turns(rope.get("beta_slow", 1))), head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - first) / max(last - first, 0.001), 0, 1)
    return frequencies / rope["factor"] * ramp + frequencies * (1 - ramp)
