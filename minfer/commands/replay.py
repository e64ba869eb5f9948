"""`minfer replay`: run one failure again from its receipt."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minfer.core.extras import require
from minfer.course.grader.child import Limits
from minfer.course.grader.marking import versions
from minfer.course.grader.receipts import Receipt
from minfer.course.lessons.files import course_root


def replay(receipt: Annotated[Path, typer.Argument(help="A file that minfer check or minfer grade wrote.")]) -> None:
    """Run one failure again, confined, on the engine that its receipt holds."""
    for module in ("pytest", "pytest_timeout"):
        require(module, "course", "running a test")
    found = Receipt.read(receipt)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    ended = found.replay(course_root(), Limits())
    console.print(ended.message or f"{ended.code}  {ended.title}: passed")
    same = (ended.status, ended.message) == (found.entry.status, found.entry.message)
    console.print("as in the receipt" if same else f"not as in the receipt, which says:\n{found.entry.message}")
    here = versions()
    others = {name: there for name, there in found.versions.items() if there != here.get(name)}
    for name, there in others.items():
        console.print(f"{name} is {here.get(name)} here, {there} in the receipt")
