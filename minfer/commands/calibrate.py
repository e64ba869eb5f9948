"""`minfer calibrate`: measures this machine, and leaves its rates where predict and why find them."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minfer.bench.ledger import environment
from minfer.calibration.calibrate import calibrate as measure
from minfer.calibration.check import Cell, Check
from minfer.core.checkpoint import Checkpoint
from minfer.core.checkpoint.shapes import RandomCheckpoint, is_random
from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.hub import resolve
from minfer.cost.hardware import Hardware, calibrated_path, write
from minfer.phase2 import Engine, EngineOptions

WIDTH = 120  # columns in a file or a pipe
SHOWN = (1, 2, 4, 8, 16, 48, 192)  # rows


def calibrate(
    model: Annotated[str, typer.Option("--model", "-m", help="Whose steps are timed.")] = ("tiny"),
    device: Annotated[str, typer.Option(help="What is measured: auto, cpu, cuda, cuda:N.")] = "auto",
    ranks: Annotated[int, typer.Option(min=1, help="Ranks to measure the link between; 1: none.")] = 2,
    check: Annotated[
        bool, typer.Option("--check", help="Also run steps of engines, and compare them with their predictions.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The file; default: this machine's own, in minfer's cache.")] = None,
) -> None:
    """Measure memory, arithmetic, the cost of an operator, the link between ranks, and real steps of the engines."""
    if out is not None and not out.absolute().parent.is_dir():
        raise OptionsError(f"--out {out}: there is no folder {out.parent}")
    place = Device.get(device)
    checkpoint = RandomCheckpoint(model) if is_random(model) else Checkpoint(resolve(model))
    module = Engine.build_model(checkpoint, EngineOptions(device=place, dtype="float32"))
    where = environment()
    errors = Console(stderr=True)
    with errors.status("") as status:
        title = f"{where['cpu']}, {where['threads']} threads, torch {where['torch']}, in the shapes of {model}"
        checked = Check(module) if check else None
        after = None if checked is None else checked.run
        made = measure(module, model, place, title, ranks, lambda what: status.update(f"measuring {what}"), after)
    path = out or calibrated_path()
    write(path, made)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    show(console, made)
    errors.print(f"minfer: written to {path}", highlight=False)
    if checked is not None:
        show_check(console, checked.cells(made))


def show(console: Console, made: Hardware) -> None:
    """The rates that can be said in a line, then products by rows."""
    console.print(made.title)
    console.print(f"memory {made.bandwidth / 1e9:.1f} GB/s; elementwise operators {made.moved / 1e9:.1f} GB/s")
    rates = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in made.flops.items())
    console.print(f"a large product, GFLOP/s: {rates}")
    console.print(f"an operator costs {made.operation * 1e6:.1f} µs")
    if made.link is not None:
        console.print(
            f"an all-reduce costs {made.link.call * 1e6:.0f} µs and {1e6 * made.link.per:.3g} µs for each MB"
            if made.link.per == 0
            else f"an all-reduce costs {made.link.call * 1e6:.0f} µs, then {1e-9 / made.link.per:.2f} GB/s"
        )
    console.print(products(made))
    console.print(others(made))


def products(made: Hardware) -> Table:
    """What engines multiply with in their steps, by some numbers of rows."""
    table = Table(title="products of all layers in real steps, GFLOP/s by rows", title_justify="left")
    table.add_column("engine")
    for count in SHOWN:
        table.add_column(str(count), justify="right")
    for name, rates in made.engines.items():
        each = [rates.layers.seconds(count) for count in SHOWN]
        table.add_row(name, *(f"{2e-9 * n / took:.0f}" if took else "–" for n, took in zip(SHOWN, each, strict=True)))
    return table


def others(made: Hardware) -> Table:
    """What lies beside products."""
    table = Table(title="beside products in real steps, µs a layer; of the host, µs a step", title_justify="left")
    table.add_column("engine")
    for name in ("others, 1 token", "192 tokens", "attention", "a KiB", "gather", "a KiB", "host", "a request"):
        table.add_column(name, justify="right")
    for name, rates in made.engines.items():
        others = (rates.compiled or rates.beside).seconds(1), rates.beside.seconds(192)
        lines = (rates.decode, 1024), (rates.gather, 1024), (rates.host, 1)
        costs = [*others, *(cost for one, unit in lines for cost in (one.call, unit * one.per))]
        table.add_row(name, *(f"{1e6 * cost:.3g}" for cost in costs))
    return table


def show_check(console: Console, cells: list[Cell]) -> None:
    """Every cell, and how far off the predictions are of decode steps, and of prompts."""
    table = Table(title="steps that calibration has not seen, ms", title_justify="left")
    for name in ("row", "step", "measured", "predicted", "error"):
        table.add_column(name, justify="left" if name in ("row", "step") else "right")
    for cell in cells:
        times = (f"{1000 * seconds:.1f}" for seconds in (cell.measured, cell.predicted))
        table.add_row(cell.row, cell.name, *times, f"{cell.error:+.0%}")
    console.print(table)
    for kind in ("decode", "prefill"):
        errors = [abs(cell.error) for cell in cells if cell.name.startswith(kind)]
        console.print(f"{kind}: {sum(errors) / len(errors):.0%} off on average, {max(errors):.0%} at most")
