"""`minfer hooks`: which phase overrides which hook."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minfer.course.lectures import hooks as table


def hooks(markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown.")] = False) -> None:
    """The hooks of the Engine, and the phases that override each; what is not marked is inherited."""
    if markdown:
        print(table.markdown(), end="")
        return
    made = Table("", *map(str, table.phases()), title=f"{table.DEFINES} defined   {table.OVERRIDES} overridden")
    for name, marks in table.rows().items():
        made.add_row(name, *marks)
    Console().print(made)
