"""Sample: what one run of a workload took, and the figures that are made of it.

Latencies are those of `minfer.core.latency`, all requests arriving at 0.
Output throughput = all output tokens / time until the last one; decode throughput counts tokens and time only from the
moment when every request has its first, so that prompts are not in it.
"""

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from minfer.core.latency import tpot, ttft


@dataclass
class Sample:
    """One run: when each token of each request was there, in seconds after the start."""

    token_times: list[list[float]]
    duration: float
    facts: dict[str, float] = field(default_factory=dict)  # what the contestant says of itself, by name

    @property
    def output_throughput(self) -> float:
        """Output tokens per second over all requests."""
        return sum(len(times) for times in self.token_times) / self.duration

    @property
    def decode_throughput(self) -> float:
        """Output tokens per second after the last request's first token; NaN if none came later."""
        begun, ended = self.prefilled_s, max(times[-1] for times in self.token_times)
        later = sum(at > begun for times in self.token_times for at in times)
        return later / (ended - begun) if later else float("nan")

    @property
    def prefilled_s(self) -> float:
        """Seconds until every request had its first token."""
        return max(times[0] for times in self.token_times)

    @property
    def ttft_ms(self) -> float:
        """Median time to first token."""
        return 1000 * statistics.median(ttft(0, times) for times in self.token_times if times)

    @property
    def tpot_ms(self) -> float:
        """Median over requests of the time per output token after the first; NaN if none has two."""
        each = [took for times in self.token_times if (took := tpot(times)) is not None]
        return 1000 * statistics.median(each) if each else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """For the ledger."""
        return asdict(self)


@dataclass(frozen=True)
class Spread:
    """Least, median and greatest of some runs."""

    least: float
    median: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """The spread of at least one value."""
        each = list(values)
        return cls(min(each), statistics.median(each), max(each))

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        least, middle, greatest = (f"{value:.{digits}f}" for value in (self.least, self.median, self.greatest))
        return middle if least == greatest else f"{middle} ({least}–{greatest})"
