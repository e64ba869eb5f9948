"""Runs contestants in turn, A B C A B C …, so that a machine that drifts drifts for all of them."""

from collections.abc import Sequence as Items
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from minfer.bench.contestants import Contestant
from minfer.bench.sample import Sample
from minfer.bench.workloads import Workload

SLOW = 60.0  # seconds: a contestant that takes longer in the first round runs in the second and then no more


def interleave(
    contestants: Items[Contestant], workload: Workload, repeats: int, console: Console
) -> dict[str, list[Sample]]:
    """A warm-up with the first request, then `repeats` runs of each contestant, in turn; samples by name.

    One that needs more than a minute for a run has two runs; run i of each is from round i.
    """
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=(repeats + 1) * len(contestants))
        for contestant in contestants:
            progress.update(task, description=f"{workload.name}: {contestant.name}, warm-up")
            contestant.run(replace(workload, requests=workload.requests[:1]))
            progress.advance(task)
        for number in range(repeats):
            for contestant in contestants:
                done = samples[contestant.name]
                if number < 2 or done[0].duration < SLOW:
                    progress.update(task, description=f"{workload.name}: {contestant.name}, run {number + 1}")
                    done.append(contestant.run(workload))
                progress.advance(task)
    return samples
