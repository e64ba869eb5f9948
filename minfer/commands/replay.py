"""`minfer replay`: run one failure again from its receipt."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minfer.core.extras import require
from minfer.course.child import Limits
from minfer.course.files import course_root
from minfer.course.marking import versions
from minfer.course.receipts import Receipt


def replay(receipt: Annotated[Path, typer.Argument(help="A file that minfer check or minfer grade wrote.")]) -> None:
    """Run one failure again, confined, on the engine that its receipt holds."""
    for module in ("pytest", "pytest_timeout"):
        require(module, "course", "running a test")
    found = Receipt.read(receipt)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    ended = found.replay(course_root(), Limits())
    console.print(ended.message or f"{ended.code}  {ended.title}: passed")
    same = (ended.status, ended.message) == (found.entry.status, found.entry.message)
    differing = [
        f"{name} {old} there, {versions()[name]} here"
        for name, old in found.versions.items()
        if versions().get(name) != old
    ]
    console.print(
        "the same as in the receipt" if same else f"not as in the receipt, which says:\n{found.entry.message}"
    )
    if differing:
        console.print(f"versions differ: {'; '.join(differing)}")
