"""Flags: command-line options made from the fields of a dataclass, so that a new field is a flag at once.

A flag that was not given is None, and the dataclass's own default holds. Values come as text and are turned into what
the field's type says; the dataclass itself judges whether they are in range.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from minfer.core.errors import OptionsError

NONE = "none"


def flag_name(field: Field) -> str:
    """`max_tokens` -> `--max-tokens`; a switch that is on has the flag that turns it off: `--no-share-prefixes`."""
    return ("--no-" if field.default is True else "--") + field.name.replace("_", "-")


def default_text(field: Field) -> str:
    """A field's default as one would type it; empty where there is nothing."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value in ((), {}) else str(value)


def with_flags(panels: Mapping[str, type], note: Callable[[str], str]) -> Callable[[Callable], Callable]:
    """Give a typer command that takes `**flags` a flag for each field of some dataclasses.

    `panels`: title in the help -> dataclass; `note(field)` is added to the help text in the field's metadata.
    """

    def decorate(command: Callable) -> Callable:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        made = [_parameter(panel, kind, field, note) for panel, kind in panels.items() for field in fields(kind)]
        vars(command)["__signature__"] = inspect.Signature([*own, *made])
        return command

    return decorate


def given_values(kind: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of the dataclass `kind` that were given, as values of its fields. Raises `OptionsError`."""
    hints = get_type_hints(kind)
    given = [(field, flags[field.name]) for field in fields(kind) if flags[field.name] not in (None, [], ())]
    return {field.name: _value(flag_name(field), hints[field.name], value) for field, value in given}


def _parameter(panel: str, kind: type, field: Field, note: Callable[[str], str]) -> inspect.Parameter:
    hint = get_type_hints(kind)[field.name]
    repeated = bool(_item_types(hint))
    option = typer.Option(
        (" /" if field.default is True else "") + flag_name(field),  # what stands behind a slash means False
        help=_help(field, note(field.name) + (" (repeatable)" if repeated else "")),
        metavar=None if hint is bool else _metavar(hint),
        show_default=False if hint is bool or field.default is None else default_text(field) or False,
        rich_help_panel=panel,
    )
    typed: Any = bool | None if hint is bool else list[str] | None if repeated else str | None
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, default=None, annotation=Annotated[typed, option])


def _help(field: Field, note: str) -> str:
    text = field.metadata["help"]
    return f"{text[:1].upper()}{text[1:]}{note}.".replace("[", "\\[")  # brackets are markup in typer's help


def _value(flag: str, hint: Any, given: Any) -> Any:
    """What was given for a flag, as its field's type `hint` wants it."""
    items = _item_types(hint)
    if len(items) == 2:
        return dict(_pair(flag, items, text) for text in given)
    if items:
        return [_scalar(flag, items, text) for text in given]
    return given if hint is bool else _scalar(flag, _members(hint), given)


def _pair(flag: str, types: tuple, text: str) -> tuple[Any, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise OptionsError(f"{flag} is {text!r}: write it as {_joined(types)}")
    return _scalar(flag, types[:1], key), _scalar(flag, types[1:], value)


def _scalar(flag: str, types: tuple, text: str) -> Any:
    if NoneType in types and text.lower() == NONE:
        return None
    kind = next((kind for kind in (int, float) if kind in types), str)
    try:
        return kind(text)
    except ValueError as error:
        noun = {int: "a whole number", float: "a number"}[kind]
        raise OptionsError(f"{flag} is {text!r}: give {noun}") from error


def _metavar(hint: Any) -> str:
    return _joined(tuple(kind for kind in _item_types(hint) or _members(hint) if kind in (int, float)))


def _joined(types: tuple) -> str:
    return f"<{'='.join(kind.__name__ for kind in types) or 'str'}>"


def _item_types(hint: Any) -> tuple:
    """`Sequence[int]` -> (int,), `Mapping[int, float]` -> (int, float), also inside a union; else ()."""
    return next((get_args(member) for member in _members(hint) if get_origin(member) in (Sequence, Mapping)), ())


def _members(hint: Any) -> tuple:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
