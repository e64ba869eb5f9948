"""`minfer bench`: measurements; each prints a table with its peers and writes a ledger."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minfer.bench import ledger, table
from minfer.bench.phases import measure
from minfer.bench.readme import insert
from minfer.core.errors import OptionsError

bench = typer.Typer(no_args_is_help=True, help="Measure phases beside each other and beside their peers.")


@bench.command()
def phases(
    model: Annotated[str, typer.Option("--model", "-m", help="tiny, a folder or a pulled name.")] = "tiny",
    dtype: Annotated[str, typer.Option(help="The weights: float32, float16, bfloat16, float64.")] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Counted runs of each, after one warm-up.")] = 5,
    peers: Annotated[bool, typer.Option(help="Whether transformers runs beside, where it is installed.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the ledger to this JSON file.")] = None,
) -> None:
    """Phases 1 to 5 on one request, on many of differing lengths, and on many that begin alike."""
    if out and not out.absolute().parent.is_dir():
        raise OptionsError(f"--out {out}: there is no folder {out.parent}")
    made = measure(model, dtype, repeats, peers, Console(stderr=True))
    if out:
        ledger.save(out, made)
    _print(made)


@bench.command()
def show(
    file: Annotated[Path, typer.Argument(help="A ledger.")],
    readme: Annotated[Path | None, typer.Option(help="Put the table into this file, between its bench marks.")] = None,
) -> None:
    """Print a ledger's tables again."""
    made = ledger.load(file)
    _print(made)
    if readme:
        insert(readme, table.markdown(made))


def _print(made: dict) -> None:
    console = Console()
    for item in table.terminal(made):
        console.print(item)
