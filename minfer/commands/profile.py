"""`minfer profile`: where the time and the memory of some requests go."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from minfer.commands.flags import given_values, with_flags
from minfer.commands.profile_report import ProfileReport
from minfer.core.errors import OptionsError
from minfer.core.hub import EMBEDDED
from minfer.core.measures.bandwidth import copy_bandwidth
from minfer.core.measures.card_usage import CardUsage
from minfer.core.measures.trace import check_path
from minfer.core.params import SamplingParams
from minfer.phase11 import Engine
from minfer.phase11.limits import preset
from minfer.plots.run_figure import check_format
from minfer.plots.step_figure import draw_steps

PROMPT = "KING HENRY:\nOnce more unto the breach, dear friends, once more;"
TOKENS = 64
WARMUP = 4  # tokens of each request: a prefill, and more than one decode step
WIDTH = 110  # columns in a file or a pipe


@with_flags({"Engine": Engine.Options, "Sampling": SamplingParams}, note=lambda _: "")
def profile(
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue; default: one of Shakespeare.")] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A pulled model's name, a folder, or random:<shape>.")
    ] = EMBEDDED,
    requests: Annotated[int, typer.Option(min=1, help="Requests that arrive together; prompts are taken in turn.")] = 8,
    limits: Annotated[
        str, typer.Option(help="What goodput asks for: chat (TTFT), reading (TPOT), answer (E2E), all.")
    ] = "all",
    top: Annotated[int, typer.Option(min=1, help="Kernels in the table.")] = 10,
    trace: Annotated[Path | None, typer.Option(help="Write the trace here (.json, .json.gz), for Perfetto.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the steps into this .png, .svg or .pdf.")] = None,
    **flags: Any,
) -> None:
    """Answer requests twice: once timed, once under torch.profiler; show latencies, steps, kernels and memory."""
    asked = preset(limits)
    if trace is not None:
        check_path(trace)
    if figure is not None:
        check_format(figure)
    params = _params(flags)
    engine: Any = Engine.load(model, **given_values(Engine.Options, flags))
    texts = [(prompts or [PROMPT])[number % len(prompts or [PROMPT])] for number in range(requests)]
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    engine.generate(texts, replace(params, max_tokens=min(WARMUP, params.max_tokens or WARMUP)))
    engine.forget()
    with CardUsage(engine.device) as usage:
        engine.generate(texts, params)
    steps, figures = engine.observer.log.records(), engine.metrics(asked)
    seen = engine.profile(texts, params, trace=trace)
    report = ProfileReport(console)
    report.print_latencies(figures, asked)
    report.print_steps(steps, engine.options.block_size, copy_bandwidth(engine.device), usage)
    report.print_kernels(seen, top)
    report.print_memory(seen.memory)
    if figure is not None:
        draw_steps(steps, figure, f"{model}: {requests} requests of {params.max_tokens} tokens")
    if trace is not None:
        console.print(
            f"\nThe trace is in {trace}: open it at ui.perfetto.dev, or in chrome://tracing.", highlight=False
        )


def _params(flags: dict[str, Any]) -> SamplingParams:
    """As given; every request has all its tokens, so that runs are alike."""
    given = {"max_tokens": TOKENS, "ignore_eos": True, **given_values(SamplingParams, flags)}
    if not given["max_tokens"]:
        raise OptionsError(f"--max-tokens {given['max_tokens']}: give a number of at least 1, so that there are steps")
    return SamplingParams(**given)
