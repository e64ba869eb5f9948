"""Runs contestants in turn, A B C A B C …, so that a machine that drifts drifts for all of them."""

from collections.abc import Sequence as Items
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from minfer.bench.contestants import Contestant
from minfer.bench.sample import Sample
from minfer.bench.workloads import Request, Workload

WARMUP = 4  # tokens of each request: a prefill, and more than one decode step
SLOW = 60.0  # seconds: a contestant that takes longer in the first round runs in the second and then no more


def interleave(
    contestants: Items[Contestant], workload: Workload, repeats: int, console: Console
) -> dict[str, list[Sample]]:
    """A warm-up, then `repeats` runs of each contestant, in turn; samples by name, run i of each from round i.

    The warm-up has all requests, so that it meets the counted runs' sizes, but stops after a few tokens. One that needs
    more than a minute for its first run has two runs and no more.
    """
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    brief = replace(workload, requests=[_brief(request) for request in workload.requests])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=(repeats + 1) * len(contestants))
        for contestant in contestants:
            progress.update(task, description=f"{workload.name}: {contestant.name}, warm-up")
            contestant.run(brief)
            progress.advance(task)
        for number in range(repeats):
            for contestant in contestants:
                done = samples[contestant.name]
                if number < 2 or done[0].duration < SLOW:
                    progress.update(task, description=f"{workload.name}: {contestant.name}, run {number + 1}")
                    done.append(contestant.run(workload))
                progress.advance(task)
    return samples


def _brief(request: Request) -> Request:
    return replace(request, params=replace(request.params, max_tokens=min(WARMUP, request.params.max_tokens or 0)))
