"""Figures: latencies and rates of the last minute, for the live view; in the event loop."""

from collections import deque
from typing import Any, NamedTuple

from minfer.core.measures.latency import e2e, gaps, percentile, tpot, ttft
from minfer.core.sequence import Sequence
from minfer.phase11.limits import Limits

WINDOW = 60.0
"""Seconds that figures look back."""
REQUESTS, GAPS = 4096, 16384
"""Most of what is kept."""


class Served(NamedTuple):
    """A request that has finished; seconds."""

    at: float
    queue: float
    ttft: float
    tpot: float | None
    e2e: float
    met: bool | None  # whether it kept the service's limits; None: there are none


class Figures:
    """What the last requests experienced. Times by the engine's clock, latencies by `minfer.core.measures.latency`."""

    def __init__(self, slo: Limits | None) -> None:
        self.slo = slo
        self.served: deque[Served] = deque(maxlen=REQUESTS)
        self.gaps: deque[tuple[float, float]] = deque(maxlen=GAPS)  # when, how long
        self.tokens: deque[tuple[float, int]] = deque(maxlen=GAPS)  # when, how many
        self.completed = self.failed = self.total_tokens = 0

    def came(self, times: list[float], before: float | None) -> None:
        """Tokens of one sequence were known at these times; `before`: the one before them."""
        known = times if before is None else [before, *times]
        self.gaps.extend(zip(known[1:], gaps(known), strict=True))
        self.tokens.append((times[-1], len(times)))
        self.total_tokens += len(times)

    def finished(self, sequence: Sequence) -> Served | None:
        """A request has ended well; None if it has no tokens."""
        self.completed += 1
        stamps = sequence.timestamps
        if not stamps.tokens:
            return None
        first, each, whole = (
            ttft(stamps.arrived, stamps.tokens),
            tpot(stamps.tokens),
            e2e(stamps.arrived, stamps.tokens),
        )
        queue = (stamps.scheduled or stamps.arrived) - stamps.arrived
        nan = float("nan")
        met = self.slo.met(first, nan if each is None else each, whole, len(stamps.tokens)) if self.slo else None
        self.served.append(Served(stamps.tokens[-1], queue, first, each, whole, met))
        return self.served[-1]

    def tokens_per_s(self, now: float, window: float = 5.0) -> float:
        """Output tokens a second, of the last `window` seconds."""
        count = 0
        for at, tokens in reversed(self.tokens):
            if at < now - window:
                break
            count += tokens
        return count / window

    def snapshot(self, now: float) -> dict[str, Any]:
        """Plain JSON values; milliseconds, null where there is nothing."""
        recent = [one for one in self.served if one.at >= now - WINDOW]
        met = [one.met for one in recent if one.met is not None]
        return {
            "window_s": WINDOW,
            "completed": self.completed,
            "failed": self.failed,
            "total_tokens": self.total_tokens,
            "tokens_per_s": self.tokens_per_s(now),
            "requests_per_s": len(recent) / WINDOW,
            "ttft_ms": _spread([one.ttft for one in recent]),
            "queue_ms": _spread([one.queue for one in recent]),
            "tpot_ms": _spread([one.tpot for one in recent if one.tpot is not None]),
            "itl_ms": _spread([gap for at, gap in self.gaps if at >= now - WINDOW]),
            "e2e_ms": _spread([one.e2e for one in recent]),
            "slo": str(self.slo) if self.slo else None,
            "met": sum(met) / len(met) if met else None,
            "goodput_per_s": sum(met) / WINDOW if met else None,
        }


def _spread(seconds: list[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys(("p50", "p95", "p99"))
    return {f"p{percent}": 1000 * percentile(seconds, percent) for percent in (50, 95, 99)}
