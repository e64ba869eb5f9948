"""The phases that exist, by number."""

import importlib
from dataclasses import Field, fields
from typing import Any

from minfer import NEWEST_PHASE
from minfer.core.errors import OptionsError
from minfer.core.options import EngineOptions


def engine_class(phase: int) -> Any:
    """The `Engine` of `phase`. Raises `OptionsError` for a phase that does not exist."""
    if not 1 <= phase <= NEWEST_PHASE:
        raise OptionsError(f"there is no phase {phase}: choose one of 1 to {NEWEST_PHASE}")
    return importlib.import_module(f"minfer.phase{phase}").Engine


def options_class(phase: int) -> type[EngineOptions]:
    """The options that the engine of `phase` takes."""
    return engine_class(phase).Options


def first_phase(option: str) -> int:
    """The phase that brought an option of the newest phase."""
    return next(n for n in range(1, NEWEST_PHASE + 1) if option in option_fields(n))


def option_fields(phase: int) -> dict[str, Field]:
    """The options of `phase` by name, in the order of their making."""
    return {field.name: field for field in fields(options_class(phase))}
