"""`minfer diff`: what a phase changes, for a lecture."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minfer.core.errors import OptionsError
from minfer.course.lectures import diff_text
from minfer.course.lectures.diff import PhaseDiff
from minfer.course.lectures.diff_page import page
from minfer.course.source.lineage import previous

Before = Annotated[int, typer.Argument(metavar="A", help="A phase; alone: what it changes of the one before.")]
After = Annotated[int | None, typer.Argument(metavar="B", help="A later phase.")]


def diff(
    before: Before,
    after: After = None,
    stat: Annotated[bool, typer.Option("--stat", help="Only how many lines each method has lost and got.")] = False,
    full: Annotated[bool, typer.Option("--full", help="New methods and nouns whole, not their heads alone.")] = False,
    hide_added: Annotated[bool, typer.Option("--hide-added", help="Hide what is added, for a class to guess.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with both sides beside each other.")] = None,
) -> None:
    """What phase B changes of phase A's Engine, method by method, wherever in the hierarchy each of them is."""
    made = PhaseDiff.of(previous(before), before) if after is None else PhaseDiff.of(before, after)
    if html is not None:
        if not html.absolute().parent.is_dir():
            raise OptionsError(f"--html {html}: there is no folder {html.parent}")
        html.write_text(page(made, hide_added), encoding="utf-8")
        print(f"wrote {html}")
    elif markdown:
        print(diff_text.markdown(made, hide_added), end="")
    elif stat:
        Console().print(diff_text.stat(made))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for item in diff_text.terminal(made, full, hide_added):
            console.print(item)
