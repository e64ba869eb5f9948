"""ModelConfig: the facts of a Hugging Face `config.json`, checked and under one set of names.

Nothing that would change a result is ignored in silence: a value that minfer cannot honour is a `ConfigError`, and a
key that nobody here has heard of is a `MinferWarning`. Absent keys take the defaults of the `transformers` class of
that architecture, since that is what the file's author ran.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.core.config_keys import DEFAULTS, GPT2_NAMES, HARMLESS, HONOURED, MODEL_TYPES, NEUTRAL, NULLABLE
from minfer.core.errors import ConfigError, MinferWarning
from minfer.core.rope import RopeConfig
from minfer.core.stored_quantization import KEY, StoredQuantization

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True)
class ModelConfig:
    """The shape and the quirks of one model; `num_heads` must be a multiple of `num_kv_heads`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    """The longest sequence, prompt and answer together, in tokens."""
    norm_eps: float
    activation: str = "silu"
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope: RopeConfig | None = None
    """None: learned positions (GPT-2)."""
    windows: tuple[int | None, ...] = ()
    """Per layer: how many positions a query sees, itself included; None: all."""
    dtype: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantization: StoredQuantization | None = None
    """How the linear layers are stored, if `minfer quantize` wrote them."""

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers that a KV cache holds for a token: 2 · layers · kv_heads · head_dim."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @classmethod
    def from_folder(cls, folder: str | Path) -> "ModelConfig":
        """Read `folder/config.json`. Raises `ConfigError` if it is absent, not JSON, or not supported."""
        path = Path(folder) / "config.json"
        facts = _read(path)
        try:
            return cls.from_dict(facts)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "ModelConfig":
        """Check the facts of a `config.json` and bring them under our names. Raises `ConfigError`."""
        architecture = _architecture(facts)
        quantization = StoredQuantization.from_config(facts)
        if quantization is not None:
            facts = {key: value for key, value in facts.items() if key != KEY}
        _refuse_what_would_change_the_result(architecture, facts)
        facts = {**DEFAULTS[architecture], **{k: v for k, v in facts.items() if v is not None or k in NULLABLE}}
        if architecture == "GPT2LMHeadModel":
            facts = _under_llama_names(facts)
        sizes = _sizes(facts)
        context = _integer(facts, "max_position_embeddings")
        rope = None if architecture == "GPT2LMHeadModel" else RopeConfig.from_facts(facts, sizes["head_dim"])
        bias = _biases(architecture, facts)
        return cls(
            architecture=architecture,
            **sizes,
            context=context if rope is None else rope.context(context),
            norm_eps=_number(facts, "rms_norm_eps"),
            activation=_activation(facts),
            tie_word_embeddings=_flag(facts, "tie_word_embeddings"),
            qkv_bias=bias[0],
            output_bias=bias[1],
            mlp_bias=bias[2],
            qk_norm=architecture == "Qwen3ForCausalLM",
            rope=rope,
            windows=_windows(architecture, facts, sizes["num_layers"]),
            dtype=facts.get("dtype") or facts.get("torch_dtype"),
            bos_token_id=next(iter(_ids(facts, "bos_token_id")), None),
            eos_token_ids=_ids(facts, "eos_token_id"),
            quantization=quantization,
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: a model folder needs a config.json beside its weights")
    try:
        data = path.read_bytes()
        is_pointer = data.startswith(b"version https://git-lfs")
        facts = None if is_pointer else json.loads(data)
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} is not readable as JSON ({error}): download the file again") from error
    if is_pointer:
        raise ConfigError(f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")
    if not isinstance(facts, dict):
        raise ConfigError(f"{path} holds a JSON {type(facts).__name__}, not an object: download the file again")
    return facts


def _architecture(facts: Mapping[str, Any]) -> str:
    names = facts.get("architectures")
    kind = facts.get("model_type")
    name = names[0] if isinstance(names, list) and names else MODEL_TYPES.get(str(kind), kind)
    supported = ", ".join(DEFAULTS)
    if name is None:
        raise ConfigError(f"neither architectures nor model_type says what the model is; minfer runs {supported}")
    if not isinstance(name, str) or name not in DEFAULTS:
        raise ConfigError(f"architecture {name!r} is not supported; minfer runs {supported}")
    return name


def _under_llama_names(facts: Mapping[str, Any]) -> dict[str, Any]:
    """GPT-2's facts under the names that the Llama family uses; its MLP is four times as wide as hidden by default."""
    renamed = {GPT2_NAMES.get(key, key): value for key, value in facts.items()}
    return {"intermediate_size": 4 * _integer(renamed, "hidden_size"), **renamed}


def _refuse_what_would_change_the_result(architecture: str, facts: Mapping[str, Any]) -> None:
    for key, neutral in NEUTRAL.items():
        if key in facts and facts[key] not in neutral:
            allowed = " or ".join(repr(value) for value in neutral)
            message = f"{key} = {facts[key]!r} would change the result and is not supported (only {allowed})"
            raise ConfigError(message)
    for key in facts.keys() - HONOURED[architecture] - HARMLESS - NEUTRAL.keys():
        message = f"config.json: {key!r} is unknown to minfer and ignored; if it matters, the answers will be wrong"
        warnings.warn(message, MinferWarning, stacklevel=4)


def _sizes(facts: Mapping[str, Any]) -> dict[str, int]:
    hidden = _integer(facts, "hidden_size")
    heads = _integer(facts, "num_attention_heads")
    kv_heads = heads if facts.get("num_key_value_heads") is None else _integer(facts, "num_key_value_heads")
    if heads % kv_heads:
        raise ConfigError(f"{heads} query heads cannot share {kv_heads} key/value heads: not a multiple")
    has_head_dim = facts.get("head_dim") is not None
    if not has_head_dim and hidden % heads:
        raise ConfigError(f"hidden_size {hidden} is not a multiple of {heads} heads and head_dim is not given")
    return {
        "vocab_size": _integer(facts, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _integer(facts, "intermediate_size"),
        "num_layers": _integer(facts, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": _integer(facts, "head_dim") if has_head_dim else hidden // heads,
    }


def _biases(architecture: str, facts: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """(q/k/v, attention output, MLP). Qwen2 hard-codes its q/k/v bias; GPT-2 has all three."""
    if architecture == "GPT2LMHeadModel":
        return True, True, True
    if architecture == "Qwen2ForCausalLM":
        return True, False, False
    attention = _flag(facts, "attention_bias")
    return attention, attention, _flag(facts, "mlp_bias")


def _windows(architecture: str, facts: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Mistral slides in every layer; Qwen in those that `layer_types` or `max_window_layers` name."""
    window = facts.get("sliding_window")
    if architecture.startswith("Qwen") and not _flag(facts, "use_sliding_window"):
        window = None
    if window is None or architecture in ("LlamaForCausalLM", "GPT2LMHeadModel"):
        return (None,) * num_layers
    window = _integer(facts, "sliding_window")
    types = facts.get("layer_types")
    if types is None:
        first = _integer(facts, "max_window_layers", 0) if architecture.startswith("Qwen") else 0
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers:
        count = f"{len(types)} entries" if isinstance(types, list) else repr(types)
        raise ConfigError(f"layer_types has {count} for {num_layers} layers: one per layer is needed")
    for kind in types:
        if kind not in ("sliding_attention", "full_attention"):
            raise ConfigError(f"layer type {kind!r} is not supported: sliding_attention or full_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _activation(facts: Mapping[str, Any]) -> str:
    name = facts["hidden_act"]
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation {name!r} is not supported; minfer has {', '.join(ACTIVATIONS)}")
    return name


def _integer(facts: Mapping[str, Any], key: str, least: int = 1) -> int:
    value = facts[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{key} = {value!r} is not an integer of at least {least}")
    return value


def _number(facts: Mapping[str, Any], key: str) -> float:
    value = facts[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{key} = {value!r} is not a number of at least 0")
    return float(value)


def _flag(facts: Mapping[str, Any], key: str) -> bool:
    value = facts.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} = {value!r} is neither true nor false")
    return value


def _ids(facts: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = facts.get(key)
    ids = tuple(value) if isinstance(value, list) else () if value is None else (value,)
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
        raise ConfigError(f"{key} = {value!r} is not a token id or a list of them")
    return ids
