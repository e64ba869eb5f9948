"""`minfer explain`: what a code stands for."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from minfer.course.lessons import mistakes


def explain(
    code: Annotated[
        str | None, typer.Argument(help="As in a failure: P3-02; or a phase: P3. Without one: all.")
    ] = None,
) -> None:
    """Explain a mistake: how it shows, why it happens, what to look at."""
    console = Console(highlight=False)
    if code and "-" in code:
        page = mistakes.page(code)
        console.print(Markdown(page.text))
        return
    for page in mistakes.of_phase(code) if code else mistakes.pages().values():
        console.print(f"{page.code:<7} {page.title}", markup=False, soft_wrap=True)
