"""Shares: how a forward's time is divided between matrix products, attention and the rest, by one profiled run."""

from typing import Any

from torch import Tensor
from torch.profiler import record_function

from minfer.bench.contestants import EngineContestant
from minfer.bench.operators import Operators
from minfer.bench.workloads import Workload
from minfer.core.batch import ForwardBatch

FORWARD = "minfer forward"


def shares(contestant: EngineContestant, workload: Workload) -> dict[str, float]:
    """Seconds of a run's forwards: in all, in products, in attention with its cache, in the rest; and the steps.

    The profiler slows small operators more than large ones, so the rest is rather less than it says.
    """
    engine: Any = contestant.engine
    forward, steps = engine.forward, 0

    def marked(batch: ForwardBatch) -> Tensor:
        nonlocal steps
        steps += 1
        with record_function(FORWARD):
            return forward(batch)

    engine.forward = marked
    try:
        seen = Operators.of(lambda: contestant.run(workload), FORWARD)
    finally:
        del engine.forward
    products, attention = seen.seconds["products"], seen.seconds["attention"] + seen.seconds["cache"]
    return {
        "steps": steps,
        "forward_s": seen.within,
        "products_s": products,
        "attention_s": attention,
        "rest_s": seen.within - products - attention,
    }
