"""`minfer models`: what is here."""

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from minfer.core.hub import PULLABLE, installed


def models() -> None:
    """List the models that are here: the embedded one and those pulled."""
    table = Table("Model", "Architecture", "Size", "Folder")
    for model in installed():
        table.add_row(model.name, model.architecture, decimal(model.size), str(model.folder))
    console = Console()
    console.print(table)
    console.print(f"More: minfer pull {PULLABLE}, minfer pull ORG/NAME", highlight=False)
