"""Figures of a row: what its runs come to, under the names of vLLM's `bench serve` results."""

import statistics
from typing import Any

from minfer.bench.sample import Sample
from minfer.core.measures.latency import percentile

NAMES = {"ttft": "ttfts", "tpot": "tpots", "itl": "itls", "e2el": "e2es"}
PERCENTS = (50, 90, 99)


def figures(samples: list[Sample], input_tokens: int) -> dict[str, Any]:
    """Figures of at least one run; latencies of all runs pooled, rates as the median run has them. Plain JSON values.

    {mean, median, std, p50, p90, p99}_{ttft, tpot, itl, e2el}_ms are absent where there is nothing to average; a
    percentile that has too few values is the maximum, see `minfer.core.measures.latency.percentile`.
    """
    requests = len(samples[0].token_times)
    output = sum(len(times) for times in samples[0].token_times)
    duration = statistics.median(sample.duration for sample in samples)
    made: dict[str, Any] = {
        "duration": duration,
        "completed": requests,
        "failed": 0,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output,
        "request_throughput": requests / duration,
        "output_throughput": output / duration,
        "total_token_throughput": (input_tokens + output) / duration,
        "max_output_tokens_per_s": max(sample.peak_throughput for sample in samples),
        "max_concurrent_requests": max(sample.peak_concurrency for sample in samples),
    }
    for name, values in NAMES.items():
        made |= latencies(name, [1000 * value for sample in samples for value in getattr(sample, values)])
    if waits := [1000 * wait for sample in samples for wait in sample.waits]:
        made |= latencies("queue", waits)
    return made


def latencies(name: str, values: list[float]) -> dict[str, float]:
    """Mean, median, deviation and percentiles of some milliseconds; nothing of none."""
    if not values:
        return {}
    made = {"mean": statistics.fmean(values), "median": statistics.median(values), "std": statistics.pstdev(values)}
    made |= {f"p{percent}": percentile(values, percent) for percent in PERCENTS}
    return {f"{kind}_{name}_ms": value for kind, value in made.items()}
