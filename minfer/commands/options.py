"""`minfer options`: a phase's options and the sampling parameters, as flags."""

from dataclasses import fields
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from minfer import NEWEST_PHASE
from minfer.commands.flags import default_text, flag_name
from minfer.commands.phases import first_phase, options_class
from minfer.core.params import SamplingParams


def options(
    phase: Annotated[int, typer.Argument(help=f"1 to {NEWEST_PHASE}.")] = NEWEST_PHASE,
) -> None:
    """Show the options of a phase (those that are new in it are marked) and the sampling parameters."""
    new = [field.name for field in fields(options_class(phase)) if first_phase(field.name) == phase]
    console = Console()
    console.print(_table(f"Options of phase {phase}", options_class(phase), new if phase > 1 else []))
    console.print(_table("Sampling parameters", SamplingParams, []))


def _table(title: str, kind: type, new: list[str]) -> Table:
    table = Table("Option", "Default", "What it does", title=title, title_justify="left")
    for field in fields(kind):
        mark = "new: " if field.name in new else ""
        table.add_row(flag_name(field), default_text(field), escape(mark + field.metadata["help"]))
    return table
