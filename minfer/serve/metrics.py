"""Metrics: what /metrics says, in Prometheus' format; names end as vLLM's do, so that its dashboards can be used."""

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from minfer.core.measures.latency import gaps
from minfer.core.sequence import FinishReason, Sequence
from minfer.serve.engine_thread import EngineThread, State
from minfer.serve.figures import Served

disable_created_metrics()  # twice as many lines, which nobody reads

FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 600)
TOKENS = tuple(lead * 10**power for power in range(5) for lead in (1, 2, 5))


class Tally(Collector):
    """A histogram of one thread's values: a `Histogram` searches its buckets and takes two locks for each value.

    That is nothing once a request, and a good part of the event loop's time once a token.
    """

    def __init__(self, name: str, text: str, bounds: Items[float], model_name: str) -> None:
        self.name, self.text, self.bounds, self.model_name = f"minfer:{name}", text, bounds, model_name
        self.counts = [0] * (len(bounds) + 1)  # of values at most each bound, and beyond the last
        self.sum = 0.0

    def add(self, values: Items[float]) -> None:
        """Count some more."""
        for value in values:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.sum += value

    def collect(self) -> Iterator[Metric]:
        """What Prometheus is told: of each bucket, how many values its bound is not less than."""
        names = [*map(floatToGoString, self.bounds), "+Inf"]
        made = HistogramMetricFamily(self.name, self.text, labels=["model_name"])
        made.add_metric([self.model_name], list(zip(names, accumulate(self.counts), strict=True)), self.sum)
        yield made


class Metrics:
    """Counters and histograms are added to when something has come or ended; gauges look when they are asked."""

    def __init__(self, model_name: str, engines: Items[EngineThread]) -> None:
        self.registry, self.name, self.engines = CollectorRegistry(), model_name, engines
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.hits = self._counter("prefix_cache_hits", "Tokens of prompts that the cache held already.")
        self.queries = self._counter("prefix_cache_queries", "Tokens of prompts that were looked for in the cache.")
        self.rejections = self._counter("admission_rejections", "Requests that were refused because of load.")
        self.success = Counter(
            "minfer:request_success",
            "Requests that ended, by why; abort: taken back, or failed.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self.ttft = self._histogram("time_to_first_token_seconds", "From the arrival to the first token.", FIRST)
        self.itl = Tally("inter_token_latency_seconds", "Between two tokens of a request.", BETWEEN, model_name)
        self.registry.register(self.itl)
        self.tpot = self._histogram("request_time_per_output_token_seconds", "Mean of those in a request.", BETWEEN)
        self.e2e = self._histogram("e2e_request_latency_seconds", "From the arrival to the last token.", WHOLE)
        self.queue = self._histogram("request_queue_time_seconds", "From the arrival to the first step.", WHOLE)
        self.inputs = self._histogram("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.outputs = self._histogram("request_generation_tokens", "Tokens of an answer.", TOKENS)
        self.preemptions = self._counter("num_preemptions", "Requests that gave their blocks back for a while.")
        self._preempted = 0
        self._gauges()

    def _gauges(self) -> None:
        self._gauge("num_requests_running", "Requests in the batch, or at a replica.", _running)
        self._gauge("num_requests_waiting", "Requests in the queue.", lambda e: len(e.scheduler.waiting) + len(e.inbox))
        self._gauge("kv_blocks_total", "Blocks of the KV cache.", lambda e: e.scheduler.allocator.num_blocks)
        self._gauge("kv_blocks_free", "Blocks that nobody holds.", lambda e: e.scheduler.allocator.num_free)
        usage = self._made("kv_cache_usage_perc", "Share of the KV cache's blocks that somebody holds, 0 to 1.")
        usage.set_function(self._usage)
        alive = self._made("engines_ready", "Engines that serve.")
        alive.set_function(lambda: sum(thread.state is State.READY for thread in self.engines))

    def text(self) -> bytes:
        """All of it, for Prometheus."""
        preempted = sum(engine.scheduler.preemptions for engine in self._ready())
        self.preemptions.inc(max(0, preempted - self._preempted))
        self._preempted = preempted
        return generate_latest(self.registry)

    def came(self, times: list[float], before: float | None) -> None:
        """Tokens of one sequence have come; see `Figures.came`."""
        self.generation_tokens.inc(len(times))
        self.itl.add(gaps(times if before is None else [before, *times]))

    def ended(self, sequence: Sequence, reason: FinishReason, served: Served | None) -> None:
        """A request has ended; `served` if it ended well."""
        self.success.labels(self.name, str(reason)).inc()
        self.prompt_tokens.inc(sequence.num_prompt)
        self.queries.inc(sequence.num_prompt)
        self.hits.inc(sequence.num_shared)
        self.inputs.observe(sequence.num_prompt)
        self.outputs.observe(len(sequence.output_ids))
        if served is not None:
            self.ttft.observe(served.ttft)
            self.e2e.observe(served.e2e)
            self.queue.observe(served.queue)
            if served.tpot is not None:
                self.tpot.observe(served.tpot)

    def _usage(self) -> float:
        pools = [engine.scheduler.allocator for engine in self._ready()]
        total = sum(pool.num_blocks for pool in pools)
        return 1 - sum(pool.num_free for pool in pools) / total if total else 0.0

    def _gauge(self, name: str, text: str, look: Any) -> None:
        """A number that is read off the engines; lengths, which another thread's step cannot tear."""
        self._made(name, text).set_function(lambda: sum(look(engine) for engine in self._ready()))

    def _ready(self) -> list[Any]:
        return [thread.engine for thread in self.engines if thread.state is State.READY]

    def _made(self, name: str, text: str) -> Gauge:
        return Gauge(f"minfer:{name}", text, ["model_name"], registry=self.registry).labels(self.name)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"minfer:{name}", text, ["model_name"], registry=self.registry).labels(self.name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"minfer:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
        return made.labels(self.name)


def _running(engine: Any) -> int:
    """Requests in an engine's batch, and those that it has given to its replicas, phase 10's."""
    replicas = getattr(engine, "replicas", None)
    elsewhere = sum(len(replica.given) for replica in replicas.all) if replicas is not None else 0
    return len(engine.scheduler.running) + elsewhere
