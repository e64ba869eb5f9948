"""Metrics: what /metrics says, in Prometheus' format; names end as vLLM's do, so that its dashboards can be used."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any, NamedTuple

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
        self.replicas: Items[dict[str, Any]] = ()  # as `LiveView.replicas` saw them last
        self._gauges()

    def _gauges(self) -> None:
        self._gauge("num_requests_running", "Requests in the batch.", lambda n: n.running)
        self._gauge("num_requests_waiting", "Requests in the queue.", lambda n: n.waiting)
        self._gauge("kv_blocks_total", "Blocks of the KV cache.", lambda n: n.blocks)
        self._gauge("kv_blocks_free", "Blocks that nobody holds.", lambda n: n.free)
        usage = "Share of the KV cache's blocks that somebody holds, 0 to 1."
        self._gauge("kv_cache_usage_perc", usage, lambda n: 1 - n.free / n.blocks if n.blocks else 0.0)
        self._gauge("engines_ready", "Engines that serve, replicas too.", lambda n: n.engines)

    def text(self, replicas: Items[dict[str, Any]] = ()) -> bytes:
        """All of it, for Prometheus; `replicas`: what was seen of those in other processes."""
        self.replicas = replicas
        preempted = self._numbers().preemptions
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

    def _gauge(self, name: str, text: str, look: Callable[["Numbers"], float]) -> None:
        """A number that is read off the engines when it is asked for."""
        self._made(name, text).set_function(lambda: look(self._numbers()))

    def _numbers(self) -> "Numbers":
        """Of all engines together; lengths, which another thread's step cannot tear."""
        each = [Numbers.of(thread.engine) for thread in self.engines if thread.state is State.READY]
        each += [Numbers.seen(replica) for replica in self.replicas if replica["state"] == State.READY]
        return Numbers(*map(sum, zip(*each, strict=True))) if each else Numbers()

    def _made(self, name: str, text: str) -> Gauge:
        return Gauge(f"minfer:{name}", text, ["model_name"], registry=self.registry).labels(self.name)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"minfer:{name}", text, ["model_name"], registry=self.registry).labels(self.name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"minfer:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
        return made.labels(self.name)


class Numbers(NamedTuple):
    """What is the case now, in an engine or in several together."""

    engines: int = 0
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    free: int = 0
    preemptions: int = 0

    @classmethod
    def of(cls, engine: Any) -> "Numbers":
        """In an engine of this process."""
        scheduler = engine.scheduler
        running, waiting = len(scheduler.running), len(scheduler.waiting) + len(engine.inbox)
        pool = scheduler.allocator
        return cls(1, running, waiting, pool.num_blocks, pool.num_free, scheduler.preemptions)

    @classmethod
    def seen(cls, replica: dict[str, Any]) -> "Numbers":
        """In one of another process, as `LiveView` saw it."""
        running, waiting, blocks = len(replica["slots"]), len(replica["waiting"]), replica["blocks"]
        return cls(1, running, waiting, blocks["total"], blocks["free"], replica["preemptions"])
