"""minfer: LLM inference in pure PyTorch, one optimisation at a time.

    import minfer
    engine = minfer.Engine.load("tiny")                      # the newest phase's engine
    engine.generate("To be, or", minfer.SamplingParams(max_tokens=20))

Importing this loads neither torch nor anything optional; `Engine` brings torch in when it is first asked for.
"""

import importlib
from typing import Any

from minfer.core.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    MinferError,
    MinferWarning,
    MissingExtra,
    OptionsError,
    RequestError,
    TokenizerError,
)

__version__ = "0.1"

NEWEST_PHASE = 11
"""The last phase that is built: whose engine `minfer.Engine` is."""

SERVING_PHASE = 5
"""The first phase that schedules requests: the command line's default, since it starts without compiling anything."""

_LAZY = {"Engine": f"minfer.phase{NEWEST_PHASE}", "SamplingParams": "minfer.core.params"}

__all__ = [
    "NEWEST_PHASE",
    "SERVING_PHASE",
    "CheckpointError",
    "ConfigError",
    "DeviceError",
    "Engine",
    "MinferError",
    "MinferWarning",
    "MissingExtra",
    "OptionsError",
    "RequestError",
    "SamplingParams",
    "TokenizerError",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
