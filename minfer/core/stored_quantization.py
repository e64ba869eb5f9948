"""StoredQuantization: what a `config.json` says of weights that `minfer quantize` wrote.

"quantization_config": {"quant_method": "minfer", "version": 1, "scheme": "int4", "group_size": 32,
                        "quantize_head": false}
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from minfer.core.errors import ConfigError

KEY, METHOD, VERSION = "quantization_config", "minfer", 1
SCHEMES = ("fp16", "int8", "int4", "fp8")
GROUP_SIZES = (32, 64, 128)
PARTS = ("codes", "scale", "zero")
"""What the tensors of a quantised weight are called, in place of `weight`."""


@dataclass(frozen=True)
class StoredQuantization:
    """The scheme of all linear layers; of the head only with `quantize_head`."""

    scheme: str
    group_size: int = 32
    quantize_head: bool = False

    @classmethod
    def from_config(cls, facts: Mapping[str, Any]) -> "StoredQuantization | None":
        """Out of a whole `config.json`; None if it has no such key, or another library's. Raises `ConfigError`."""
        given = facts.get(KEY)
        if not isinstance(given, Mapping) or given.get("quant_method") != METHOD:
            return None
        if given.get("version") != VERSION:
            raise ConfigError(f"{KEY}: version {given.get('version')!r} is not {VERSION}: quantise the model again")
        wanted = {"scheme": SCHEMES, "group_size": GROUP_SIZES, "quantize_head": (True, False)}
        for key, values in wanted.items():
            if given.get(key) not in values or type(given[key]) is not type(values[0]):
                allowed = ", ".join(map(repr, values))
                raise ConfigError(f"{KEY}: {key} = {given.get(key)!r} is none of {allowed}: quantise the model again")
        return cls(**{key: given[key] for key in wanted})

    def to_facts(self) -> dict[str, Any]:
        """The value of `quantization_config`."""
        return {"quant_method": METHOD, "version": VERSION, **asdict(self)}
