"""`minfer why`: turns two rows of a benchmark table into a waterfall."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minfer.bench import ledger
from minfer.bench.why import in_words, neighbours, row_named, waterfall
from minfer.core.errors import OptionsError
from minfer.cost.waterfall import NAMES
from minfer.plots.run_figure import check_format
from minfer.plots.waterfall_figure import draw_waterfall

WIDTH = 140  # columns in a file or a pipe


def why(
    first: Annotated[str | None, typer.Argument(help="A row, by how its name begins; none: all neighbours.")] = None,
    second: Annotated[str | None, typer.Argument(help="The row that is compared with it.")] = None,
    ledger_file: Annotated[Path, typer.Option("--ledger", help="What minfer bench table --out has written.")] = Path(
        "table.json"
    ),
    picture: Annotated[Path | None, typer.Option(help="Draw the waterfall into this .png, .svg or .pdf.")] = None,
) -> None:
    """Say why one row of a table is faster than another: which part of the time went where, and what to try next."""
    if (first is None) != (second is None):
        raise OptionsError(f"one row alone, {first}, differs from nothing: name two, or none for all neighbours")
    made = ledger.load(ledger_file)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    if first is None or second is None:
        if picture is not None:
            raise OptionsError("--picture draws one pair: name two rows")
        _show_neighbours(console, made)
        return
    if picture is not None:
        check_format(picture)
    one, other = row_named(made, first), row_named(made, second)
    found = waterfall(made, one, other)
    for line in in_words(made, one["name"], other["name"], found):
        console.print(line)
    if picture is not None:
        draw_waterfall(found, picture, f"{made['model']}: {one['name']} → {other['name']}")


def _show_neighbours(console: Console, made: dict) -> None:
    """A row for each pair; parts in ms per output token."""
    table = Table(title="ms per output token, from each row to the next", title_justify="left")
    table.add_column("")
    for name in ["from", "to", *NAMES.values(), "unexplained", "of it", "noise"]:
        table.add_column(name, justify="right")
    for one, other, found in neighbours(made):
        parts = [f"{found.parts[name]:+.2f}" for name in NAMES]
        share = "(noise)" if found.is_noise else f"{found.unexplained_share:.0%}"
        cells = [f"{found.first:.2f}", f"{found.second:.2f}", *parts, f"{found.unexplained:+.2f}", share]
        table.add_row(f"{one} → {other}", *cells, f"{found.noise:.2f}")
    console.print(table)
