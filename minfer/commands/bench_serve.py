"""`minfer bench serve`, `minfer bench engine`: the same requests, to a server and to an engine directly."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from minfer import NEWEST_PHASE
from minfer.bench.ledger import environment
from minfer.bench.load import Plan, random_prompts, report
from minfer.bench.serve import measure, run_alone, served
from minfer.commands.flags import given_values, with_flags
from minfer.commands.phases import engine_class, options_class
from minfer.core.errors import OptionsError, RequestError
from minfer.serve.slo import parse_slo

InputLen = Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")]
OutputLen = Annotated[int, typer.Option(min=1, help="Tokens of each answer.")]
NumPrompts = Annotated[int, typer.Option(min=1, help="Requests.")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Most requests in flight; default: all.")]
Seed = Annotated[int, typer.Option(help="Of the prompts and of the times at which they are sent.")]
SaveResult = Annotated[Path | None, typer.Option(help="Write the figures to this JSON file, by vLLM's names.")]


def bench_serve(
    base_url: Annotated[str, typer.Option(help="The server's address.")] = "http://127.0.0.1:8000",
    endpoint: Annotated[
        str, typer.Option(help="/v1/completions, or such a path of another server.")
    ] = "/v1/completions",
    model: Annotated[str | None, typer.Option(help="Its model; default: the first that it names.")] = None,
    input_len: InputLen = 128,
    output_len: OutputLen = 128,
    num_prompts: NumPrompts = 64,
    request_rate: Annotated[
        float, typer.Option(min=0.001, help="Requests per second, at random times; inf: no limit.")
    ] = float("inf"),
    max_concurrency: Concurrency = None,
    num_warmups: Annotated[int, typer.Option(min=0, help="Requests before those that count.")] = 4,
    goodput: Annotated[
        str | None, typer.Option(help="What counts as served well: chat, …; or ttft:500,tpot:50.")
    ] = None,
    seed: Seed = 0,
    save_result: SaveResult = None,
) -> None:
    """Send requests to a server that speaks OpenAI's API, and show what their clients saw."""
    slo = parse_slo(goodput) if goodput else None
    if endpoint.endswith("chat/completions"):
        raise OptionsError("--endpoint: prompts are token ids, which chats do not take: use /v1/completions")
    _check(save_result)
    prompts = random_prompts(num_prompts, input_len, seed)
    plan = Plan(
        base_url.rstrip("/"),
        model or served(base_url.rstrip("/")),
        prompts,
        output_len,
        endpoint,
        request_rate,
        max_concurrency,
        seed,
        {"ignore_eos": True, "stream_options": {"include_usage": True}},
    )
    results = measure(plan, num_warmups)
    figures = {**report(results, slo), "num_prompts": num_prompts, "request_rate": str(request_rate)}
    _show(figures, save_result, f"{plan.model} at {plan.base_url}")
    others = [result for result in results if not result.completed and result.status != 429]
    if others:
        raise RequestError(
            f"{len(others)} of {num_prompts} requests failed: {others[0].status} {others[0].error[:200]}"
        )


@with_flags({"Engine": options_class(NEWEST_PHASE)}, note=lambda _: "")
def bench_engine(
    model: Annotated[str, typer.Option("--model", "-m", help="tiny, a folder or a pulled name.")] = "tiny",
    phase: Annotated[int, typer.Option(help="Whose engine.")] = NEWEST_PHASE,
    input_len: InputLen = 128,
    output_len: OutputLen = 128,
    num_prompts: NumPrompts = 64,
    max_concurrency: Concurrency = None,
    seed: Seed = 0,
    save_result: SaveResult = None,
    **flags: Any,
) -> None:
    """The requests of `bench serve` given to an engine in this process: what a server can reach at most."""
    _check(save_result)
    engine = engine_class(phase).load(model, **given_values(options_class(NEWEST_PHASE), flags))
    prompts = random_prompts(num_prompts, input_len, seed)
    figures = run_alone(engine, prompts, output_len, max_concurrency or num_prompts)
    _show({**figures, "num_prompts": num_prompts}, save_result, f"{model}, phase {phase}, without a server")


def _check(path: Path | None) -> None:
    if path and not path.absolute().parent.is_dir():
        raise OptionsError(f"--save-result {path}: there is no folder {path.parent}")


def _show(figures: dict[str, Any], path: Path | None, title: str) -> None:
    table = Table("figure", "value", title=title, title_justify="left")
    for name, value in figures.items():
        table.add_row(name, f"{value:.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
    if path:
        path.write_text(json.dumps({**figures, "env": environment()}, indent=1) + "\n", encoding="utf-8")
