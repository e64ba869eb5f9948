"""Metrics: the latencies of the requests that have finished, in memory that is taken once; and their figures."""

import math
from typing import Any

import numpy as np

from minfer.core.measures.latency import e2e, gaps, percentile, tpot, ttft
from minfer.core.sequence import FinishReason, Sequence
from minfer.phase11.limits import Limits

REQUESTS = 4096
GAPS = 2**16
"""How many are kept: the last requests that finished, and the last gaps between two tokens of a request."""

REQUEST = np.dtype(
    [(name, "i8") for name in ("request", "input_tokens", "output_tokens")]
    + [(name, "f8") for name in ("arrived", "queue", "prefill", "first_sample", "ttft", "tpot", "e2e")]
)


class Metrics:
    """Latencies as `minfer.core.measures.latency` defines them, in seconds. The parts of TTFT add up to it:

    queue          from the arrival to the first step that has the request in it
    first_sample   what the device took to draw the first token from its logits
    prefill        all between: the steps that computed the prompt, and the reading of the token

    A request that failed is counted and has no latencies; one that its user took back is not counted.
    """

    def __init__(self) -> None:
        self.requests = np.zeros(REQUESTS, REQUEST)
        self.gaps = np.zeros(GAPS)
        self.completed = self.failed = self.num_gaps = 0

    def add(self, sequence: Sequence) -> None:
        """A request has finished."""
        if sequence.finish_reason is FinishReason.ABORT:
            self.failed += 1
            return
        stamps, tokens = sequence.timestamps, sequence.timestamps.tokens
        assert stamps.scheduled is not None
        assert stamps.drawing is not None
        first, queue = ttft(stamps.arrived, tokens), stamps.scheduled - stamps.arrived
        took = tpot(tokens)
        self.requests[self.completed % REQUESTS] = (
            *(sequence.id, sequence.num_prompt, len(tokens)),
            *(stamps.arrived, queue, first - queue - stamps.drawing, stamps.drawing),
            *(first, np.nan if took is None else took, e2e(stamps.arrived, tokens)),
        )
        self.completed += 1
        between = gaps(tokens)[-GAPS:]
        self.gaps[np.arange(self.num_gaps, self.num_gaps + len(between)) % GAPS] = between
        self.num_gaps += len(between)

    def rows(self) -> list[dict[str, Any]]:
        """The kept requests in the order in which they finished, as plain JSON values in seconds; tpot may be null."""
        kept = self._kept()
        columns = {name: kept[name].tolist() for name in REQUEST.names or ()}
        columns["tpot"] = [None if math.isnan(took) else took for took in columns["tpot"]]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def figures(self, limits: Limits | None = None) -> dict[str, Any]:
        """The figures of the kept requests as plain JSON values; times in ms, rates per second.

        duration                 from the first arrival to the last token
        request_throughput       requests / duration
        output_throughput        output tokens / duration
        total_token_throughput   input and output tokens / duration
        tokens_per_s_per_user    1 / TPOT of each request
        request_goodput          requests that met `limits` / duration
        met                      the share of requests that did
        """
        kept = self._kept()
        spent = kept["arrived"] + kept["e2e"]
        duration = float(spent.max() - kept["arrived"].min()) if len(kept) else 0.0
        tpots = kept["tpot"][~np.isnan(kept["tpot"])]
        taken = {"completed": self.completed, "failed": self.failed, "duration": duration}
        totals = {name: int(kept[name].sum()) for name in ("input_tokens", "output_tokens")}
        rates = {
            "request_throughput": _rate(len(kept), duration),
            "output_throughput": _rate(totals["output_tokens"], duration),
            "total_token_throughput": _rate(sum(totals.values()), duration),
        }
        parts = {name: _milliseconds(kept[name]) for name in ("ttft", "queue", "prefill", "first_sample")}
        times = {
            **{f"{name}_ms": spread for name, spread in parts.items()},
            "tpot_ms": _milliseconds(tpots),
            "itl_ms": _milliseconds(self.gaps[: min(self.num_gaps, GAPS)]),
            "e2el_ms": _milliseconds(kept["e2e"]),
            "tokens_per_s_per_user": _spread(1 / tpots[tpots > 0]),
        }
        return {**taken, **totals, **rates, **times, **self._goodput(kept, duration, limits)}

    def _goodput(self, kept: np.ndarray, duration: float, limits: Limits | None) -> dict[str, Any]:
        if limits is None:
            return {}
        each = zip(*(kept[name].tolist() for name in ("ttft", "tpot", "e2e", "output_tokens")), strict=True)
        met = sum(limits.met(*one) for one in each)
        return {"request_goodput": _rate(met, duration), "met": _rate(met, len(kept))}

    def _kept(self) -> np.ndarray:
        """The kept requests, oldest first."""
        return self.requests[[n % REQUESTS for n in range(max(0, self.completed - REQUESTS), self.completed)]]


def _milliseconds(seconds: np.ndarray) -> dict[str, Any]:
    return _spread(1000 * seconds)


def _spread(values: np.ndarray) -> dict[str, Any]:
    """Mean, percentiles, greatest and number; null where there are no values. On percentiles see `percentile`."""
    if not len(values):
        return {**dict.fromkeys(("mean", "p50", "p95", "p99", "max")), "count": 0}
    each = values.tolist()
    percentiles = {f"p{percent}": percentile(each, percent) for percent in (50, 95, 99)}
    return {"mean": float(values.mean()), **percentiles, "max": float(values.max()), "count": len(values)}


def _rate(count: int, duration: float) -> float | None:
    return count / duration if duration else None
