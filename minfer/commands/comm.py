"""`minfer comm`: how fast ranks talk to each other, and what share of a model's decode step that is."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minfer.bench.collectives import Figure, Overlap, measure_all
from minfer.bench.step_share import StepShare, step_share
from minfer.core.errors import OptionsError

SIZES = [2**power for power in (10, 12, 14, 16, 18, 20, 22, 24)]
WIDTH = 100


def comm(
    ranks: Annotated[int, typer.Option(help="How many ranks talk to each other.")] = 2,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Deal this model to them, and time its steps.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where they live: auto, cpu (Gloo), cuda (NCCL, a GPU each).")] = "auto",
    requests: Annotated[int, typer.Option(help="How many requests a step of the model decodes.")] = 1,
    sizes: Annotated[list[int] | None, typer.Option("--size", help="Bytes of a message (repeatable).")] = None,
) -> None:
    """Measure AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, compute beside them, a model's decode step."""
    if ranks < 2:
        raise OptionsError(f"--ranks {ranks}: one rank alone has nobody to talk to: give 2 or more")
    if any(size < 4 * ranks for size in sizes or []):
        raise OptionsError(f"--size {min(sizes or [])}: every rank needs 4 bytes of it: give at least {4 * ranks}")
    if requests < 1:
        raise OptionsError(f"--requests {requests}: give 1 or more")
    share = step_share(model, ranks, device, requests) if model else None
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    figures, overlap = measure_all(ranks, sizes or SIZES, device)
    console.print(table(figures, ranks))
    console.print(beside(overlap), highlight=False)
    if model:
        console.print(in_words(model, ranks, share), highlight=False)


def table(figures: list[Figure], ranks: int) -> Table:
    """A row for each operation and size."""
    made = Table(title=f"{ranks} ranks; latency is one call's, bandwidths are in GB/s of 1e9 bytes")
    for name in ("operation", "bytes", "latency µs", "algorithm GB/s", "bus GB/s"):
        made.add_column(name, justify="left" if name == "operation" else "right")
    for last, figure in enumerate(figures, start=1):
        bandwidths = (f"{rate / 1e9:.3f}" for rate in (figure.algorithm_bandwidth, figure.bus_bandwidth))
        ends = last == len(figures) or figures[last].operation != figure.operation
        row = (figure.operation, f"{figure.nbytes:,}", f"{figure.seconds * 1e6:.1f}", *bandwidths)
        made.add_row(*row, end_section=ends)
    return made


def beside(overlap: Overlap) -> str:
    """What compute hides of communication."""
    each = (overlap.communication_seconds, overlap.compute_seconds, overlap.both_seconds)
    communication, compute, both = (f"{1e3 * seconds:.2f} ms" for seconds in each)
    return (
        f"Compute beside communication: an AllReduce of {overlap.nbytes:,} bytes takes {communication}, products of "
        f"matrices {compute}, both at once {both}: {overlap.hidden:.0%} of the shorter is hidden"
    )


def in_words(model: str, ranks: int, share: StepShare | None) -> str:
    """A decode step's time, with the part of it that was communication."""
    if share is None:
        return f"{model}: communication of a step: n/a (on GPUs it runs beside the host: record a profile)"
    kinds = (share.step_seconds - share.communication_seconds, share.operation_seconds, share.waiting_seconds)
    compute, operations, waiting = (f"{1e3 * part:.2f} ms ({part / share.step_seconds:.0%})" for part in kinds)
    who = "one request" if share.requests == 1 else f"{share.requests} requests"
    return (
        f"{model}, a decode step of {who} on {ranks} ranks: {1e3 * share.step_seconds:.2f} ms = {compute} compute + "
        f"{operations} in {share.calls} operations between ranks, {1e6 * share.latency:.0f} µs each when nobody is "
        f"late + {waiting} waiting for a rank that is. One rank with the threads of all: "
        f"{1e3 * share.alone_seconds:.2f} ms; the ranks are {share.speed:.2f} × as fast"
    )
