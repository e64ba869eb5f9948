"""`minfer top`: what a server does, live, in a terminal."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from minfer.serve.top import fetch, screen


def top(
    url: Annotated[
        str, typer.Option(help="The server's address, as minfer serve prints it.")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(envvar="MINFER_API_KEY", help="What the server wants to see.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 0.5,
) -> None:
    """Show a server's batch, blocks, queue, latencies and memory until Ctrl-C."""
    console = Console()
    first = screen(fetch(url, api_key))
    if once or not console.is_terminal:
        console.print(first)
        return
    with Live(first, console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(screen(fetch(url, api_key)), refresh=True)
