"""`minfer quality`: what quantising a model costs."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from minfer.core.checkpoint import Checkpoint
from minfer.core.checkpoint.shapes import is_random
from minfer.core.errors import OptionsError
from minfer.core.hub import resolve
from minfer.core.hub.pull import default_progress
from minfer.phase6 import Engine
from minfer.phase6.quality import Quality, Sample, compare, perplexity

HELDOUT = Path(__file__).parents[1] / "assets" / "heldout.txt"
ALL = ("fp16", "int8", "int8-rows", "fp8", "int4")
COLUMNS = ("weights", "perplexity", "against", "KL (nats)", "greedy match", "bytes a weight", "of float32", "kernels")


def quality(
    model: Annotated[str, typer.Argument(help="tiny, a folder or a pulled name, not quantised yet.")] = "tiny",
    quantization: Annotated[
        list[str] | None,
        typer.Option(help="fp16, int8, int4 (or int4-g64, int4-g128), fp8; -rows behind: rows too (repeatable)."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the text to score.")] = 2048,
    text: Annotated[Path | None, typer.Option(help="A text file; default: a shipped one.")] = None,
    device: Annotated[str, typer.Option(help="Where it runs: auto, cpu, cuda, cuda:N.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="What is not quantised: auto, float64, float32, float16, bfloat16.")
    ] = "auto",
) -> None:
    """Compare quantised weights with the model's own: on a text, and on greedy answers."""
    names = quantization or list(ALL)
    schemes = {name: parse(name) for name in names}
    if not is_random(model) and Checkpoint(resolve(model)).config.quantization is not None:
        raise OptionsError(f"{model} is stored quantised: give the model that it was made from")
    words = _read(text or HELDOUT)
    where = {"device": device, "dtype": dtype}
    reference = Engine.load(model, **where)
    sample = Sample.of(reference, words, tokens)
    base = perplexity(reference, sample)
    table = _table(sample, (text or HELDOUT).name, base, reference.dtype)
    with default_progress() as progress:
        for name, options in schemes.items():
            task = progress.add_task(name, total=1.0)
            engine = Engine.load(model, **where, **options)
            found = compare(engine, reference, sample, partial(_show, progress, task))
            table.add_row(name, *_cells(found, base, sample))
    Console().print(table)


def _show(progress: Progress, task: TaskID, fraction: float) -> None:
    progress.update(task, completed=fraction)


def parse(name: str) -> dict[str, Any]:
    """`int4-g64` or `int8-rows` as options of phase 6. Raises `OptionsError`."""
    scheme, *rest = name.split("-")
    options: dict[str, Any] = {"quantization": scheme}
    for part in rest:
        if part == "rows":
            options["quantize_rows"] = True
        elif part[:1] == "g" and part[1:].isdigit():
            options["group_size"] = int(part[1:])
        else:
            raise OptionsError(f"{name!r}: behind {scheme} there may be -rows, or -g and a group size, not -{part}")
    Engine.Options(**options)
    return options


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"cannot read the text {path}: {error}") from error


def _table(sample: Sample, text: str, base: float, dtype: Any) -> Table:
    chunks = f"{sample.scored:,} tokens of {text} in {len(sample.chunks)} chunks"
    answers = f"{len(sample.prompts)} greedy answers of {sample.answer} tokens"
    table = Table(*COLUMNS, title=f"{chunks}; {answers}", title_justify="left")
    kept = str(dtype).removeprefix("torch.")
    table.add_row(kept, f"{base:.3f}", "", "", "", "", "", "")
    return table


def _cells(found: Quality, base: float, sample: Sample) -> list[str]:
    per = found.nbytes / found.parameters
    return [
        f"{found.perplexity:.3f}",
        f"{100 * (found.perplexity / base - 1):+.2f} %",
        f"{found.divergence:.5f}",
        f"{found.match:.1f} of {sample.answer}",
        f"{per:.3f}",
        f"{per / 4:.3f}",
        ", ".join(found.kernels),
    ]
