"""Runs contestants in turn, A B C A B C …, so that a machine that drifts drifts for all of them."""

import gc
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from minfer.bench.contestants import Contestant
from minfer.bench.sample import Sample
from minfer.bench.workloads import Request, Workload
from minfer.core.errors import MinferError

WARMUP = 4  # tokens of each request: a prefill, and more than one decode step
SLOW = 60.0  # seconds: a contestant that takes longer in the first round runs in the second and then no more


@dataclass
class Series:
    """What of a series is done: it may be interrupted, and go on in another process.

    samples   by the contestant's name, those of an earlier process too
    failed    why a contestant takes no part any more; its samples are gone: a failure is never counted as a success
    keep      called after every change
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    keep: Callable[[], None] = lambda: None

    def run(self, contestant: Contestant, workload: Workload) -> Sample | None:
        """A run that may fail, unless an earlier one has."""
        if contestant.name in self.failed:
            return None
        try:
            return contestant.run(workload)
        except (RuntimeError, MinferError) as error:
            self.failed[contestant.name] = f"failed: {error}"
            self.samples.pop(contestant.name, None)
            self.keep()
            return None


class Strict(Series):
    """A series that ends with the first failure."""

    def run(self, contestant: Contestant, workload: Workload) -> Sample:
        """A run whose failure is raised."""
        return contestant.run(workload)


def interleave(
    contestants: Items[Contestant],
    workload: Workload,
    repeats: int,
    console: Console,
    series: Series | None = None,
) -> dict[str, list[Sample]]:
    """A warm-up, then `repeats` runs of each contestant, in turn; samples by name, run i of each from round i.

    The warm-up has all requests, so that it meets the counted runs' sizes, but stops after a few tokens. One that needs
    more than a minute for its first run has two runs and no more. With `series`, runs that it has are not made
    again, and a contestant that fails leaves the series; without, the series ends with it.
    """
    series = series or Strict()
    samples = series.samples
    for contestant in contestants:
        if contestant.name not in series.failed:
            samples.setdefault(contestant.name, [])
    short = brief(workload)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress, without_collections():
        task = progress.add_task("", total=(repeats + 1) * len(contestants))
        for contestant in contestants:
            progress.update(task, description=f"{workload.name}: {contestant.name}, warm-up")
            if len(samples.get(contestant.name, [])) < repeats:
                series.run(contestant, short)
            progress.advance(task)
        for number in range(repeats):
            for contestant in contestants:
                done = samples.get(contestant.name, [])
                if contestant.name not in series.failed and _is_due(number, done):
                    progress.update(task, description=f"{workload.name}: {contestant.name}, run {number + 1}")
                    if (sample := series.run(contestant, workload)) is not None:
                        done.append(sample)
                        series.keep()
                progress.advance(task)
    return samples


def _is_due(number: int, done: list[Sample]) -> bool:
    """Whether round `number` has a run of a contestant with these."""
    return len(done) <= number and (number < 2 or done[0].duration < SLOW)


@contextmanager
def without_collections() -> Iterator[None]:
    """What is alive is no garbage: keep Python's collector from going through all of it amid a run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def brief(workload: Workload, tokens: int = WARMUP) -> Workload:
    """All of its requests, which end after a few tokens."""
    return replace(workload, requests=[_brief(request, tokens) for request in workload.requests])


def _brief(request: Request, tokens: int) -> Request:
    return replace(request, params=replace(request.params, max_tokens=min(tokens, request.params.max_tokens or 0)))
