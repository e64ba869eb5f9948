"""`minfer predict`: what the cost model says of an engine on some hardware, beside published figures."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minfer.bench.simulation import simulate
from minfer.bench.workloads import decode
from minfer.core.checkpoint.shapes import is_random, random_config
from minfer.core.config import ModelConfig
from minfer.core.errors import OptionsError
from minfer.core.hub import RANDOM, resolve
from minfer.cost.cost_model import CostModel, Setup, Terms
from minfer.cost.formulas import Step
from minfer.cost.hardware import Hardware, find_hardware
from minfer.cost.published import Published, published
from minfer.cost.waterfall import NAMES
from minfer.phase2.weight_formats import FORMATS, find_format
from minfer.phase5.options import PagedOptions

WIDTH = 120  # columns in a file or a pipe
MOST_REQUESTS = PagedOptions.token_budget
"""At once: each needs its token in every step, and a step of the scheduler has so many."""


def predict(
    model: Annotated[str, typer.Option("--model", "-m", help="tiny, a folder, a pulled name or random:<shape>.")] = (
        "tiny"
    ),
    hardware: Annotated[
        str | None, typer.Option(help="A known machine, or a file; default: this one, as minfer calibrate left it.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"The weights: {', '.join(FORMATS)}.")] = "float32",
    phase: Annotated[int, typer.Option(min=1, max=11, help="Whose engine: 7 compiles, 8 replays graphs.")] = 8,
    batch: Annotated[int, typer.Option(min=1, max=MOST_REQUESTS, help="Requests at once.")] = 1,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 5,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 200,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks that share each layer.")] = 1,
    all_published: Annotated[
        bool, typer.Option("--published", help="Instead: every published figure, beside its prediction.")
    ] = False,
) -> None:
    """Predict the time of a step, of a first token, and the throughput, by part; with published figures of the same."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    if all_published:
        show_published(console)
        return
    config = random_config(model) if is_random(model) else ModelConfig.from_folder(resolve(model))
    if input_len + output_len > config.context:
        raise OptionsError(
            f"--input-len {input_len} and --output-len {output_len} are {input_len + output_len} tokens: this model "
            f"takes {config.context}"
        )
    machine = find_hardware(hardware)
    setup = Setup(config, phase, find_format(dtype).name, ranks=ranks)
    show(console, model, CostModel(setup, machine), batch, input_len, output_len)
    for one in published():
        if matches(one, model, machine, setup, batch):
            console.print(in_words(one))


def show(console: Console, model: str, cost: CostModel, batch: int, prompt: int, new: int) -> None:
    """The table of parts, then what a run of `batch` such requests would come to."""
    paged = 16 if cost.setup.phase >= 5 else 0
    middle = prompt + new // 2
    steps = {
        f"decode {batch} × 1 over {middle}": Step.decode([middle] * batch, paged),
        f"prefill {prompt}": Step.prefill(prompt),
    }
    title = f"{model}, {cost.setup.weights}, phase {cost.setup.phase}, on {cost.hardware.title}: ms of a step"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in [*NAMES.values(), "in all", "no less than"]:
        table.add_column(name, justify="right")
    for name, step in steps.items():
        terms = cost.step(step)
        cells = [milliseconds(getattr(terms, part)) for part in NAMES]
        table.add_row(name, *cells, milliseconds(terms.total), milliseconds(cost.limit(step)))
    console.print(table)
    sample, _, _ = simulate(cost, decode(cost.setup.config.vocab_size, batch, prompt, new), batch)
    console.print(
        f"{batch} × {prompt} tokens in, {new} out: TTFT {sample.ttft_ms:.1f} ms, TPOT {sample.tpot_ms:.2f} ms, "
        f"{sample.decode_throughput:.1f} tokens/s while decoding; {bottleneck(cost.step(next(iter(steps.values()))))}"
    )


def milliseconds(seconds: float) -> str:
    """Three digits that count."""
    return "–" if not seconds else f"{1000 * seconds:.3g}"


def bottleneck(terms: Terms) -> str:
    """The largest part in words."""
    part = max(NAMES, key=lambda name: getattr(terms, name))
    return f"{getattr(terms, part) / terms.total:.0%} of a decode step is {NAMES[part]}"


def matches(one: Published, model: str, machine: Hardware, setup: Setup, batch: int) -> bool:
    """Whether a published figure is of this very case."""
    asked = (model.removeprefix(RANDOM), machine.name, setup.weights, setup.ranks, setup.phase >= 7)
    return batch == 1 and asked == (one.model, one.hardware, one.weights, one.ranks, one.phase >= 7)


def in_words(one: Published) -> str:
    """Prediction, figure and error; the prediction is of what was published, operators and answer's length too."""
    predicted = 1 / one.predicted().total
    note = "; a rate in the hardware's file is from this figure" if one.fitted else ""
    return f"published: {one.tokens_per_s:g} tokens/s, predicted {predicted:.1f}: {one.error:+.1%}{note} ({one.source})"


def show_published(console: Console) -> None:
    """Every figure, and the mean error of those that nothing was taken from."""
    table = Table(title="decoding, batch 1, tokens/s", title_justify="left")
    for name in ("model", "hardware", "weights", "phase", "ranks", "published", "predicted", "error", "source"):
        table.add_column(name, justify="right" if name in ("published", "predicted", "error", "ranks") else "left")
    for one in published():
        predicted = f"{1 / one.predicted().total:.1f}"
        error = f"{one.error:+.1%}" + (" (fitted)" if one.fitted else "")
        source = one.source.partition(" (")[0].partition(":")[0]
        cells = (one.model, one.hardware, one.weights, str(one.phase), str(one.ranks), f"{one.tokens_per_s:g}")
        table.add_row(*cells, predicted, error, source)
    console.print(table)
    errors = [abs(one.error) for one in published() if not one.fitted]
    console.print(f"{len(errors)} figures that no rate was taken from: {sum(errors) / len(errors):.1%} off on average")
