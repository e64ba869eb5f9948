"""Sample: what one run of a workload took, and the figures that are made of it.

Latencies are those of `minfer.core.measures.latency`, all requests arriving at 0; what happens after the last token,
and before the run, is in none of them. Output throughput = all output tokens / time until the last one; decode
throughput counts tokens and time only from the moment when every request has its first, so that prompts are not in it.
"""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from minfer.core.measures.latency import e2e, gaps, tpot, ttft


@dataclass
class Sample:
    """One run: when each token of each request was there, in seconds after the start."""

    token_times: list[list[float]]
    duration: float
    facts: dict[str, float] = field(default_factory=dict)  # what the contestant says of itself, by name
    waits: list[float] = field(default_factory=list)  # seconds of each request in the queue; empty: not known

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

    @property
    def ttfts(self) -> list[float]:
        """Time to first token of each request, in seconds; its wait in the queue is in it."""
        return [ttft(0, times) for times in self.token_times]

    @property
    def tpots(self) -> list[float]:
        """Time per output token after the first, in seconds, of each request of at least two tokens."""
        return [took for times in self.token_times if (took := tpot(times)) is not None]

    @property
    def itls(self) -> list[float]:
        """The gaps between tokens of all requests, in seconds."""
        return [gap for times in self.token_times for gap in gaps(times)]

    @property
    def e2es(self) -> list[float]:
        """From arrival to the last token of each request, in seconds."""
        return [e2e(0, times) for times in self.token_times]

    @property
    def peak_throughput(self) -> int:
        """The most output tokens in one whole second after the start (vLLM's max_output_tokens_per_s)."""
        return max(Counter(int(at) for times in self.token_times for at in times).values())

    @property
    def peak_concurrency(self) -> int:
        """The most requests that were in work at one moment: each from its wait's end until its last token.

        One that begins in the moment in which another ends is not counted beside it.
        """
        starts = self.waits or [0.0] * len(self.token_times)
        edges = [(start, 1) for start in starts] + [(end, -1) for end in self.e2es]
        running = highest = 0
        for _, change in sorted(edges):
            running += change
            highest = max(highest, running)
        return highest

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
