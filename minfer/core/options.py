"""Engine options: one frozen dataclass per phase, each extending the one before.

The command line makes its flags and its help from the fields, so a field is an option everywhere at once.
"""

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from minfer.core.errors import OptionsError, did_you_mean

Options = TypeVar("Options", bound="EngineOptions")


def option(default: Any, help: str) -> Any:
    """A dataclass field with the help text that the command line shows."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class EngineOptions:
    """What every engine can be told."""

    device: Any = option("auto", "where the model lives: auto, cpu, cuda, cuda:N")  # noqa: RUF009 (it is a field)
    dtype: str = option("auto", "weights: auto, float64, float32, float16, bfloat16")
    context: int | None = option(None, "longest sequence in tokens, prompt and answer; default: the model's")

    def __post_init__(self) -> None:
        if self.context is not None:
            at_least(self, "context", 2)

    def context_within(self, limit: int) -> int:
        """The longest sequence for a model of `limit` positions. Raises `OptionsError` where more was asked for."""
        if self.context is not None and self.context > limit:
            raise OptionsError(f"context = {self.context}: the model has {limit} positions: give at most that")
        return self.context or limit


def at_least(options: EngineOptions, name: str, least: int) -> None:
    """Refuse an integer option below `least`. Raises `OptionsError`."""
    value = getattr(options, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionsError(f"{name} = {value!r}: give an integer of at least {least}")


def make_options(kind: type[Options], values: dict[str, Any]) -> Options:
    """`kind(**values)`, where an unknown name is an `OptionsError` that names the valid ones."""
    valid = [known.name for known in fields(kind)]
    for name in values:
        if name not in valid:
            raise OptionsError(
                f"unknown option {name!r}{did_you_mean(name, valid, 1)}; valid options: {', '.join(valid)}"
            )
    return kind(**values)
