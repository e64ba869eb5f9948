"""`minfer bench`: measurements; each prints a table with its peers, and those that take time write a ledger."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from minfer.bench import fast as fast_bench
from minfer.bench import full_table, ledger, ops, phases, table
from minfer.bench import overlap as overlapping
from minfer.bench import sweep as sweeping
from minfer.bench.readme import insert
from minfer.commands.bench_serve import bench_engine, bench_serve
from minfer.core.errors import OptionsError
from minfer.plots.run_figure import check_format, draw
from minfer.plots.sweep_figure import draw_sweep

WIDTH = 140  # columns in a file or a pipe, where nothing needs to be folded

bench = typer.Typer(no_args_is_help=True, help="Measure phases beside each other and beside their peers.")

Model = Annotated[str, typer.Option("--model", "-m", help="tiny, a folder or a pulled name.")]
Dtype = Annotated[str, typer.Option(help="The weights: float32, float16, bfloat16, float64.")]
Repeats = Annotated[
    int, typer.Option(min=1, help="Counted runs of each, after a warm-up; one that takes over a minute has two.")
]
Device = Annotated[str, typer.Option(help="Where it runs: auto, cpu, cuda, cuda:N.")]
Out = Annotated[Path | None, typer.Option(help="Write the ledger to this JSON file.")]


@bench.command(name="phases")
def bench_phases(
    model: Model = "tiny",
    dtype: Dtype = "float32",
    repeats: Repeats = 5,
    peers: Annotated[bool, typer.Option(help="Whether transformers runs beside, where it is installed.")] = True,
    out: Out = None,
) -> None:
    """Phases 1 to 5 on one request, on many of differing lengths, and on many that begin alike."""
    _check(out)
    _finish(phases.measure(model, dtype, repeats, peers, Console(stderr=True)), out)


@bench.command()
def fast(
    model: Model = "tiny",
    device: Device = "auto",
    repeats: Repeats = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="A row, by how its name begins, or a workload (repeatable).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The ledger; an unfinished one is gone on with.")] = None,
) -> None:
    """Phases 5 to 8, whole and quantised, beside transformers and llama.cpp: decoding 1, 16 and 32, and a prefill."""
    _check(out)
    _print(fast_bench.FastBench(model, device, repeats, only or [], out, Console(stderr=True)).measure())


@bench.command(name="table")
def bench_table(
    model: Model = "tiny",
    device: Device = "auto",
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests, all at once.")] = 8,
    input_len: Annotated[int, typer.Option(min=2, help="Tokens of a prompt, up to half more or less.")] = 32,
    output_len: Annotated[int, typer.Option(min=4, help="Tokens of an answer, up to half more or less.")] = 10,
    repeats: Repeats = 5,
    seed: Annotated[int, typer.Option(help="Of lengths and token ids.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="A row, by how its name begins (repeatable).")] = None,
    out: Annotated[Path | None, typer.Option(help="The ledger; an unfinished one is gone on with.")] = None,
) -> None:
    """Every optimisation as a row: latencies, throughput, memory, what ran, quality beside FP32, and peers."""
    _check(out)
    asked: dict[str, Any] = {"num_prompts": num_prompts, "input_len": input_len, "output_len": output_len}
    asked |= {"repeats": repeats, "seed": seed, "only": only or []}
    _print(full_table.FullTable(model, device, asked, out, Console(stderr=True)).measure())


@bench.command()
def sweep(
    model: Model = "tiny",
    device: Device = "auto",
    phase: Annotated[list[int] | None, typer.Option(min=4, help="Whose engine (repeatable); default: 5.")] = None,
    max_concurrency: Annotated[int, typer.Option(min=2, help="The largest batch; 1, 2, 4, … come before.")] = 32,
    input_len: Annotated[int, typer.Option(min=2, help="Tokens of each prompt.")] = 32,
    output_len: Annotated[int, typer.Option(min=4, help="Tokens of each answer.")] = 16,
    repeats: Repeats = 3,
    out: Out = None,
    figure: Annotated[Path | None, typer.Option(help="Draw latency against throughput into this file.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw who held which row, and which block, when lengths differ, into this.")
    ] = None,
) -> None:
    """Batches of 1, 2, 4, … requests: what each of them waits for a token, and what all get together."""
    _check(out)
    for path in (figure, timeline):
        if path:
            check_format(path)
    asked: dict[str, Any] = {"phases": phase or [5], "max_concurrency": max_concurrency}
    asked |= {"input_len": input_len, "output_len": output_len, "repeats": repeats}
    run = sweeping.Sweep(model, device, asked, Console(stderr=True))
    made = run.measure()
    _finish(made, out)
    if figure:
        draw_sweep(made, figure)
    if timeline:
        draw(run.recording(), timeline, f"{model}: requests of differing lengths, {max_concurrency} rows")


@bench.command(name="overlap")
def bench_overlap(
    model: Model = "tiny",
    device: Device = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 4,
    tokens: Annotated[int, typer.Option(min=4, help="Tokens of each answer.")] = 32,
    repeats: Repeats = 5,
    out: Out = None,
    picture: Annotated[Path | None, typer.Option(help="Draw host, model and copies of some steps into this.")] = None,
) -> None:
    """Steps launched before the last one's tokens are read (phase 9), beside steps one after another (phase 8)."""
    _check(out)
    if picture:
        check_format(picture)
    run = overlapping.Overlap(model, device, batch, tokens)
    _finish(run.measure(repeats, Console(stderr=True)), out)
    if picture:
        run.draw(picture)


@bench.command(name="ops")
def bench_ops(model: Model = "tiny", dtype: Dtype = "float32") -> None:
    """Operators called in one decode step, before and after fusion."""
    Console().print(ops.count(model, dtype, list(ops.VARIANTS)).rich())


bench.command(name="serve")(bench_serve)
bench.command(name="engine")(bench_engine)


@bench.command()
def show(
    file: Annotated[Path, typer.Argument(help="A ledger.")],
    readme: Annotated[Path | None, typer.Option(help="Put the table into this file, between its bench marks.")] = None,
) -> None:
    """Print a ledger's tables again."""
    made = ledger.load(file)
    _print(made)
    if readme:
        insert(readme, table.markdown(made), made.get("kind", "bench"))


def _check(out: Path | None) -> None:
    if out and not out.absolute().parent.is_dir():
        raise OptionsError(f"--out {out}: there is no folder {out.parent}")


def _finish(made: dict, out: Path | None) -> None:
    if out:
        ledger.save(out, made)
    _print(made)


def _print(made: dict) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for item in table.terminal(made):
        console.print(item)
