"""A field of an options dataclass is a flag at once, with its help, its default and its type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import pytest
import typer
from typer.testing import CliRunner

import minfer
from minfer import SamplingParams
from minfer.commands.flags import flag_name, given_values, with_flags
from minfer.commands.phases import options_class


def made(default, help="what it does", **more):
    return field(default=default, metadata={"help": help}, **more)


@dataclass(frozen=True)
class Invented:
    whole: int = made(3)
    real: float = made(0.5, help="[in brackets]")
    name: str = made("auto")
    limit: int | None = made(7)
    switch: bool = made(False)
    on: bool = made(True)
    ids: Sequence[int] = made(())
    words: str | Sequence[str] = made(())
    table: Mapping[int, float] = field(default_factory=dict, metadata={"help": "pairs"})


@pytest.fixture
def parse():
    """Flags -> the values that were given."""
    got = []

    def command(**flags):
        got.append(given_values(Invented, flags))

    app = typer.Typer()
    app.command()(with_flags({"Invented": Invented}, note=lambda name: " (noted)" if name == "whole" else "")(command))

    def parse(*args):
        result = CliRunner().invoke(app, args, env={"COLUMNS": "120"}, catch_exceptions=False)
        return result.output if "--help" in args else got[-1]

    return parse


GIVEN = [
    ([], {}),
    (["--whole", "4"], {"whole": 4}),
    (["--real", "1"], {"real": 1.0}),
    (["--name", "none"], {"name": "none"}),
    (["--limit", "none"], {"limit": None}),
    (["--limit", "0"], {"limit": 0}),
    (["--switch"], {"switch": True}),
    (["--no-on"], {"on": False}),
    (["--ids", "1", "--ids", "2"], {"ids": [1, 2]}),
    (["--words", "a b", "--words", ""], {"words": ["a b", ""]}),
    (["--table", "1=2.5", "--table", "7=-1"], {"table": {1: 2.5, 7: -1.0}}),
]


@pytest.mark.parametrize(
    ("args", "values"), GIVEN, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_only_what_was_given_is_passed_on_in_its_fields_type(parse, args, values):
    got = parse(*args)
    assert got == values
    assert [type(value) for value in got.values()] == [type(value) for value in values.values()]


def test_help_shows_every_field_with_its_text_default_and_note(parse):
    text = parse("--help")
    for shown in ("What it does (noted).", "[in brackets].", "(7)", "--no-on", "Pairs (repeatable).", "<int=float>"):
        assert shown in text
    assert "--no-switch" not in text


def test_generate_has_a_flag_for_every_option_and_parameter(run):
    text = run("generate", "--help").out
    for known in (*fields(options_class(minfer.NEWEST_PHASE)), *fields(SamplingParams)):
        assert f"{flag_name(known)} " in text
