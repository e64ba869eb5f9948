"""Anatomy: what the time of a row's run goes to, in milliseconds per output token: measured, not modelled.

On a CPU a `PartClock` times parts in the counted runs themselves; what is in none of them is unexplained. Only the
attention that is compiled into regions comes from one more run, under torch.profiler. The profiler's own time, so much
for each event that it notes, is measured beforehand and subtracted.

On a GPU, and in ledgers without the clock's figures, all parts are the profiler's, scaled to the counted runs.

One thing is computed, not measured: how much of the products is reading weights, their bytes over the bandwidth.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from typing import Any

from torch import Tensor
from torch.profiler import record_function

from minfer.bench.contestants import EngineContestant
from minfer.bench.linear_layers import LINEAR, called_layers, weight_of
from minfer.bench.operators import Operators
from minfer.bench.sample import Sample
from minfer.bench.shares import FORWARD
from minfer.bench.workloads import Workload, decode
from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.models import model_class
from minfer.cost.cost_model import Terms
from minfer.phase6 import QuantizedLinear

PRODUCT = "minfer::linear"  # `Operators` takes it for a product, with all that is called within
PROBE_LAYERS = 8  # of the model that tells the profiler's own time


def anatomy(contestant: EngineContestant, workload: Workload, event_s: float) -> dict[str, float]:
    """Seconds of a profiled run's forwards by kind, less the profiler's own; steps; bytes that products read in one.

    `compiled_s` is the attention within compiled regions, in which no clock can tell it apart.
    """
    engine: Any = contestant.engine
    forward, ranks = engine.forward, getattr(engine, "ranks", None)

    def marked(batch: ForwardBatch) -> Tensor:
        with record_function(FORWARD):
            return forward(batch)

    groups = ranks.groups if ranks else ()
    waited = [group.seconds for group in groups]
    engine.forward = marked
    try:
        made: list[Sample] = []
        with layers_marked(engine):
            seen = Operators.of(lambda: made.append(contestant.run(workload)), FORWARD)
    finally:
        del engine.forward
    waits = [group.seconds - before for group, before in zip(groups, waited, strict=True)]
    inside = (
        waits[groups.index(ranks.tensor)] if ranks else 0.0
    )  # all-reduces are seen as parts of the layers' products
    steps = made[0].facts["steps"]
    seconds = {kind: max(0.0, seen.seconds[kind] - event_s * seen.events[kind]) for kind in seen.seconds}
    return {
        "steps": steps,
        "calls": seen.calls.total() / steps,
        "forward_s": seen.within - event_s * seen.events.total(),
        "events": float(seen.events.total()),
        "products_s": max(0.0, seconds.get("products", 0.0) - inside),
        "attention_s": seconds.get("attention", 0.0),
        "compiled_s": seen.compiled["attention"],
        "cache_s": seconds.get("cache", 0.0),
        "communication_s": sum(waits),
        "product_bytes": float(product_bytes(engine.model)),
    }


@contextmanager
def layers_marked(engine: Any) -> Iterator[None]:
    """Count all that a linear layer does as its product: unpacking its weight, and converting its rows too."""
    ranges: list[Any] = []

    def enter(*_: Any) -> None:
        ranges.append(record_function(PRODUCT))
        ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    hooks = []
    for layer in called_layers(engine):
        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def terms(facts: dict[str, float], run: Sample, bandwidth: float) -> Terms:
    """Milliseconds per output token of a row, by part, in its run `run`; they need not add up to what that took."""
    tokens = sum(len(times) for times in run.token_times)
    parts = clocked(facts, run) if "others_s" in run.facts else profiled(facts, run)
    reading = min(parts["products"], facts["steps"] * facts["product_bytes"] / bandwidth)
    seconds = Terms(
        weights=reading,
        kv=parts["attention"],
        copies=parts["copies"],
        arithmetic=parts["products"] - reading,
        launches=parts["launches"],
        communication=parts["communication"],
        host=run.duration - run.facts["forward_s"],
    )
    return Terms(*(1000 / tokens * value for value in astuple(seconds)))


def clocked(facts: dict[str, float], run: Sample) -> dict[str, float]:
    """Seconds of a run's parts by its own clock; attention that has no call to be timed, by the profiler.

    Products were timed by both: their ratio tells how the machine's speed has drifted between the two runs.
    """
    own = run.facts
    products = own["layers_s"] + own["head_s"]
    seen = facts["products_s"]  # 0 where they took no longer than the profiler itself
    compiled = facts["compiled_s"] * (products / seen if seen else 1.0)
    return {
        "products": products,
        "attention": own["attention_s"] + compiled,
        "copies": own["gather_s"],
        "communication": own["communication_s"],
        "launches": own["others_s"] - compiled,
    }


def profiled(facts: dict[str, float], run: Sample) -> dict[str, float]:
    """Seconds of a run's parts in the shares that they had under the profiler; none if all that was its own time."""
    scale = run.facts["forward_s"] / facts["forward_s"] if facts["forward_s"] > 0 else 0.0
    return {
        "products": scale * facts["products_s"],
        "attention": scale * facts["attention_s"],
        "copies": scale * facts["cache_s"],
        "communication": scale * facts["communication_s"],
        "launches": scale * others(facts),
    }


def others(facts: dict[str, float]) -> float:
    """Seconds of a profiled run's forwards that are in no other part."""
    known = facts["products_s"] + facts["attention_s"] + facts["cache_s"] + facts["communication_s"]
    return max(0.0, facts["forward_s"] - known)


def product_bytes(model: Any) -> int:
    """Bytes of the weights that products read in a step; a head that is tied too, an embedding's lookup not."""
    layers = [one for one in model.modules() if isinstance(one, LINEAR)]
    if not isinstance(model.lm_head, LINEAR):  # a rank's own part of the vocabulary
        layers.append(model.lm_head)
    return sum(map(_bytes_of, layers))


def _bytes_of(layer: Any) -> int:
    if isinstance(layer, QuantizedLinear):
        return layer.nbytes
    return weight_of(layer).nbytes


def event_seconds(config: ModelConfig) -> float:
    """Seconds that the profiler takes for each event that it notes: by a tiny model, with it and without."""
    contestant = EngineContestant(5, empty_model(config), num_blocks=16)
    work = decode(64, 2, 8, 12)
    contestant.run(work)
    plain = min(contestant.run(work).facts["forward_s"] for _ in range(3))
    seen = [anatomy(contestant, work, 0.0) for _ in range(3)]
    return max(0.0, (min(one["forward_s"] for one in seen) - plain) / seen[0]["events"])


def empty_model(config: ModelConfig) -> Any:
    """A model of the same kind whose layers have next to no numbers: what it takes is calling its operators."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "vocab_size": 64,
    }
    made = replace(config, num_layers=PROBE_LAYERS, windows=(None,) * PROBE_LAYERS, **sizes)  # type: ignore[arg-type]
    if config.rope is not None:
        made = replace(made, rope=replace(config.rope))
    return model_class(made)(made)
