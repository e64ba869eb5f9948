"""`minfer course`: what whoever keeps the course runs."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minfer.core.errors import MinferError
from minfer.course.lessons.budget import Budget, Spent
from minfer.course.lessons.files import course_root
from minfer.course.lessons.sync import stale, write
from minfer.course.source.library import phases

course = typer.Typer(no_args_is_help=True, help="Make the starters and diff pages of the course anew.")


@course.command()
def sync(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if anything would change.")] = False,
) -> None:
    """Make every starter, from its phase and exercise.toml, and every diff page."""
    folder = course_root() / "phases"
    found = stale(folder) if check else write(folder)
    for path in found:
        print(path.relative_to(folder.parent))
    if check and found:
        raise MinferError(f"{len(found)} files are not as they would be made now: run minfer course sync")
    if not found:
        print("all as it is made")


@course.command()
def budget() -> None:
    """What each phase's Engine overrides and adds, beside what phases/course.toml allows."""
    promise = course_root() / "phases" / "course.toml"
    table = Table("phase", "class", "overridden", "new methods", "lines of code", "too much")
    for phase in phases():
        for spent in Spent.by(phase):
            too_much = "; ".join(spent.over(Budget.read(promise, phase)))
            own = f"{len(spent.overridden)}: {', '.join(spent.overridden)}" if spent.overridden else ""
            table.add_row(str(phase), spent.name, own, str(len(spent.added)), str(spent.lines), too_much)
    Console().print(table)
