"""Top: what a server's `/live` says, as a screen of text."""

import json
import urllib.request
from itertools import zip_longest
from typing import Any
from urllib.error import HTTPError, URLError

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.filesize import decimal
from rich.panel import Panel
from rich.style import Style
from rich.table import Table
from rich.text import Text

from minfer.core.errors import RequestError

COLORS = (
    "red",
    "green",
    "yellow",
    "blue",
    "magenta",
    "cyan",
    "bright_red",
    "bright_green",
    "bright_blue",
    "bright_cyan",
)
STEPS, ROWS = 60, 16
"""Columns and lines of the picture of batch rows: the screen is to fit a terminal of 50 lines."""
REQUESTS = 6
"""Lines of the table of requests."""
MAP_LINES = 8
"""Lines of the block map; of this and of those above, each of several replicas has its share."""


def fetch(url: str, api_key: str | None) -> dict[str, Any]:
    """What the server at `url` says of itself. Raises `RequestError` in one line."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url.rstrip('/')}/live", headers=headers), timeout=5
        ) as got:
            return json.load(got)
    except HTTPError as error:
        hint = "give its --api-key" if error.code == 401 else "is it a minfer server?"
        raise RequestError(f"{url} answers with status {error.code}: {hint}") from error
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise RequestError(
            f"no minfer server at {url} ({reason}): start one with minfer serve, or give --url"
        ) from error


def screen(live: dict[str, Any]) -> RenderableType:
    """The same as the page: figures, rows over steps, blocks, requests, memory; replicas in pairs."""
    engines, figures = live["engines"], _figures(live["figures"])
    if len(engines) == 1:
        (steps, blocks, memory), requests = _engine(engines[0], 1), _requests(engines[0], REQUESTS)
        return Group(_head(live), Columns([figures, requests]), steps, blocks, memory)
    grid = Table.grid(expand=True)
    for _ in range(2):
        grid.add_column(ratio=1)
    cells = [Group(*_engine(one, len(engines)), _requests(one, REQUESTS // len(engines))) for one in engines]
    for pair in zip_longest(cells[::2], cells[1::2], fillvalue=Text()):
        grid.add_row(*pair)
    return Group(_head(live), figures, grid)


def _engine(engine: dict[str, Any], count: int) -> list[RenderableType]:
    """Its rows, blocks and memory, in its share of the lines that one of `count` engines has."""
    name = f"replica {engine['replica']}: " if count > 1 else ""
    if engine["blocks"] is None:
        return [Panel(f"{name}the engine is {engine['state']}"), Text(), Text()]
    rows, cells = BatchRows(engine["steps"], ROWS // count), BlockMap(engine["blocks"], MAP_LINES // count or 1)
    return [
        Panel(rows, title=f"{name}batch rows over the last steps (▄: prompt)"),
        Panel(cells, title=name + _block_title(engine["blocks"])),
        _memory(engine["memory"]),
    ]


def color_of(request: int) -> str:
    """The same colour for a request wherever it is seen."""
    return COLORS[request % len(COLORS)]


def _head(live: dict[str, Any]) -> Text:
    steps = " (small steps)" if live["policy"]["small"] else " (large steps)"
    status = Style(color="green" if live["status"] == "ok" else "red", bold=True)
    return Text.assemble(
        ("minfer ", "bold"),
        f"{live['model']}, phase {live['phase']}, up {live['uptime_s']:.0f} s, policy {live['policy']['aim']}{steps}: ",
        (live["status"], status),
    )


def _figures(figures: dict[str, Any]) -> Table:
    table = Table("last minute", "p50", "p95", "p99", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, title in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL"), ("e2e_ms", "E2E")):
        table.add_row(title, *("–" if value is None else f"{value:.1f} ms" for value in figures[name].values()))
    table.add_section()
    table.add_row("tokens/s", f"{figures['tokens_per_s']:.1f}", "", "")
    table.add_row("requests/s", f"{figures['requests_per_s']:.2f}", "", "")
    if figures["slo"]:
        met = "–" if figures["met"] is None else f"{100 * figures['met']:.0f} %"
        table.add_row(f"served well ({figures['slo']})", met, "", "")
    return table


class BatchRows:
    """Who held which row at the last steps, as many of them as there is room for."""

    def __init__(self, steps: list[Any], lines: int) -> None:
        self.steps, self.lines = steps, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A column for each step, in the colour of the request that held the row."""
        shown = self.steps[-min(STEPS, options.max_width - 4) :]
        rows = max((row[0] for step in shown for row in step[5]), default=-1) + 1
        text = Text()
        for slot in range(min(rows, self.lines)):
            text.append(f"{slot:3} ", "dim")
            for step in shown:
                here = next((row for row in step[5] if row[0] == slot), None)
                text.append(" " if here is None else "▄" if here[2] == "p" else "█", here and color_of(here[1]))
            text.append("\n")
        if rows > self.lines:
            text.append(f"and {rows - self.lines} more rows", "dim")
        text.rstrip()
        yield text if rows else Text("no step yet: send a request")


class BlockMap:
    """The pool in a few lines, however wide the terminal: in a large one a cell stands for several blocks."""

    def __init__(self, blocks: dict[str, Any], lines: int) -> None:
        self.owners, self.lines = blocks["map"], lines
        self.cached = blocks["marks"]["cached"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A mark for each cell, in the colour of a request that holds it."""
        each = -(-len(self.owners) // (options.max_width * self.lines))
        text = Text(overflow="fold")
        for at in range(0, len(self.owners), each):
            owner = max(self.owners[at : at + each])
            if owner >= 0:
                text.append("■", color_of(owner))
            else:
                text.append("▫" if owner == self.cached else "·", "dim")
        if each > 1:
            text.append(f"\na mark stands for {each} blocks", "dim")
        yield text


def _block_title(blocks: dict[str, Any]) -> str:
    return (
        f"blocks: {blocks['used']} of {blocks['total']} used, {blocks['shared']} shared, {blocks['cached']} cached (▫)"
    )


def _requests(engine: dict[str, Any], lines: int) -> RenderableType:
    table = Table("request", "row", "prompt", "written", "blocks", "age")
    for one in engine["slots"][:lines]:
        own = (one["slot"], one["prompt_tokens"], one["output_tokens"], len(one["blocks"]), f"{one['age_s']:.1f} s")
        table.add_row(Text(f"{one['id']} {one['phase']}", color_of(one["id"])), *map(str, own))
    waiting = engine["waiting"]
    oldest = f", the first since {waiting[0]['age_s']:.1f} s" if waiting else ""
    running = f"{len(engine['slots'])} of {engine['max_batch']} rows, {len(waiting)} waiting{oldest}"
    return Group(table, Text(running))


def _memory(memory: dict[str, int]) -> Text:
    parts = ", ".join(f"{'KV cache' if name == 'kv' else name} {decimal(size)}" for name, size in memory.items())
    return Text(f"memory {decimal(sum(memory.values()))}: {parts}")
