"""Runs contestants in turn, A B C A B C …, so that a machine that drifts drifts for all of them."""

from collections.abc import Sequence as Items

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from minfer.bench.contestants import Contestant
from minfer.bench.sample import Sample
from minfer.bench.workloads import Workload


def interleave(
    contestants: Items[Contestant], workload: Workload, repeats: int, console: Console
) -> dict[str, list[Sample]]:
    """One warm-up that is not counted, then `repeats` runs of each contestant, in turn; samples by name."""
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=(repeats + 1) * len(contestants))
        for repeat in range(repeats + 1):
            for contestant in contestants:
                round_name = f"run {repeat}" if repeat else "warm-up"
                progress.update(task, description=f"{workload.name}: {contestant.name}, {round_name}")
                sample = contestant.run(workload)
                if repeat:
                    samples[contestant.name].append(sample)
                progress.advance(task)
    return samples
