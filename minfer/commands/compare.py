"""`minfer compare`: what a phase's change does, on the same requests."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minfer.core.errors import OptionsError
from minfer.course.lectures.compare import WORKLOADS, Effect, shown
from minfer.course.lectures.compare_page import effect_html
from minfer.course.lectures.diff import PhaseDiff
from minfer.course.lectures.diff_page import page


def compare(
    before: Annotated[int, typer.Argument(metavar="A", help="A phase.")],
    after: Annotated[int, typer.Argument(metavar="B", help="Another.")],
    workload: Annotated[str, typer.Option("--workload", "-w", help=f"Requests: {', '.join(WORKLOADS)}.")] = "mixed",
    model: Annotated[str, typer.Option("--model", "-m", help="tiny, a folder or a pulled name.")] = "tiny",
    ask: Annotated[bool, typer.Option("--ask", help="Ask for a guess of each figure of B before it is shown.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page: the effect above the difference of code.")] = None,
) -> None:
    """The same requests on the engines of two phases: steps, tokens computed, padding, KV bytes, waiting, tokens/s."""
    if html is not None and not html.absolute().parent.is_dir():
        raise OptionsError(f"--html {html}: there is no folder {html.parent}")
    diff = PhaseDiff.of(before, after) if html is not None else None
    console = Console(stderr=True)
    with console.status(f"phase {before}"):
        old = Effect.of(before, model, workload)
    with console.status(f"phase {after}"):
        new = Effect.of(after, model, workload)
    about = f"{model}: {WORKLOADS[workload](1000).about}"
    if ask:
        _ask(old, new)
    Console().print(_table(old, new, about))
    if html is not None and diff is not None:
        html.write_text(page(diff, effect=effect_html(old, new, about)), encoding="utf-8")
        print(f"wrote {html}")


def _ask(before: Effect, after: Effect) -> None:
    """A guess for each figure, then what it is; an empty guess is none."""
    for name, old in before.figures().items():
        guess = typer.prompt(f"{name}: phase {before.phase} {shown(old)}. Phase {after.phase}", "", show_default=False)
        print(f"  {shown(after.figures()[name])}" + (f"  (you said {guess})" if guess else ""))


def _table(before: Effect, after: Effect, title: str) -> Table:
    table = Table("", title=title, title_justify="left")
    for phase in (before.phase, after.phase):
        table.add_column(f"phase {phase}", justify="right")
    new = after.figures()
    for name, old in before.figures().items():
        table.add_row(name, shown(old), shown(new[name]))
    return table
