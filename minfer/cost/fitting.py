"""Fitting: rates of an engine from what its real steps took, term by term; no term knows what the others came to."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

from minfer.cost.cost_model import CostModel, Setup, attended, only_decodes
from minfer.cost.hardware import Curve, EngineRates, Hardware, Line
from minfer.cost.real_steps import RealStep

Of = Callable[[RealStep], Any]
NOTHING = Line(0.0, 0.0)


def tokens(step: RealStep) -> int:
    """Of all requests together."""
    return step.sizes.tokens


def decoding(step: RealStep) -> bool:
    """Whether it computes one token of each request."""
    return only_decodes(step.sizes)


def every(step: RealStep) -> bool:
    """Any step."""
    return True


class Fit:
    """Of one engine, whose steps were run through some times.

    Of the same steps of several passes the least time is taken: what disturbs the machine in one is over in another.
    Within a pass it is the median: a step makes hundreds of calls, which take what such calls usually take.
    """

    def __init__(self, setup: Setup, machine: Hardware, passes: list[list[RealStep]]) -> None:
        self.model, self.passes = CostModel(setup, machine), passes
        self.formulas, self.layers = self.model.formulas, setup.config.num_layers
        decodes = [step for steps in passes for step in steps if decoding(step)]
        self.is_compiled = not any(step.parts["attention"] for step in decodes)

    def rates(self) -> EngineRates:
        """Every term from the steps that have it."""
        formulas = self.formulas
        compiled, decode, gather = self.compiled() if self.is_compiled else (None, *self.paged())
        return EngineRates(
            layers=self.curve(tokens, lambda step: step.parts["layers"] / formulas.layer_weights),
            head=self.curve(lambda step: step.sizes.rows, lambda step: step.parts["head"] / formulas.head_weights),
            beside=self.curve(tokens, self.beside, (lambda step: not decoding(step)) if self.is_compiled else every),
            prefill=self.prefill(),
            decode=decode,
            gather=gather,
            host=self.line(lambda step: len(step.sizes.queries), lambda step: step.host, decoding),
            compiled=compiled,
            communication=self.communication(),
        )

    def beside(self, step: RealStep) -> float:
        """A layer's share of what is no part's."""
        return step.beside / self.layers

    def kv_bytes(self, step: RealStep) -> float:
        """Bytes of keys and values that single tokens see in a layer."""
        return sum(attended(step.sizes)[0]) * self.formulas.cost.kv_bytes / self.layers

    def compiled(self) -> tuple[Line, Line, Line]:
        """Where attention has no call of its own, it is what grows with the bytes read. Nothing is gathered."""
        points = self.least(lambda step: (1.0, float(tokens(step)), self.kv_bytes(step)), self.beside, decoding)
        call, token, byte = fitted(points)
        return Line(call, token), Line(0.0, byte), NOTHING

    def paged(self) -> tuple[Line, Line]:
        """Attention of single tokens, and the gathering before it."""
        copied = self.line(
            lambda step: self.formulas.work(step.sizes).copied / self.layers,
            lambda step: step.parts["gather"] / self.layers,
            decoding,
        )
        return self.line(self.kv_bytes, lambda step: step.parts["attention"] / self.layers, decoding), copied

    def prefill(self) -> Line:
        """Attention of prompts, each in a call of its own."""

        def sizes(step: RealStep) -> tuple[float, float]:
            queries, contexts, *_ = step.sizes
            pairs = sum(query * context for query, context in zip(queries, contexts, strict=True))
            return float(len(queries)), pairs * self.formulas.cost.per_pair / self.layers

        points = self.least(
            sizes,
            lambda step: step.parts["attention"] / self.layers,
            lambda step: all(query > 1 for query in step.sizes.queries),
        )
        return Line(*fitted(points))

    def communication(self) -> Line | None:
        """Of a step, by the bytes of all its messages."""
        if self.model.setup.ranks == 1:
            return None
        return self.line(lambda step: self.model.messages(step.sizes), lambda step: step.parts["communication"], every)

    # ---- how -----------------------------------------------------------------------------------------------------

    def curve(self, size: Of, took: Of, of: Of = every) -> Curve:
        """Through all sizes that were met, but for 0; what is a difference of clocks may come to less than nothing."""
        points = self.least(size, took, of).items()
        return Curve(tuple(sorted((at, max(0.0, seconds)) for at, seconds in points if at)))

    def line(self, size: Of, took: Of, of: Of) -> Line:
        """By one size."""
        points = self.least(lambda step: (1.0, float(size(step))), took, of)
        return Line(*fitted(points))

    def least(self, size: Of, took: Of, of: Of) -> dict[Any, float]:
        """By size, the least median of a pass, of the steps for which `of` holds."""
        found: dict[Any, float] = {}
        for steps in self.passes:
            alike: dict[Any, list[float]] = defaultdict(list)
            for step in filter(of, steps):
                alike[size(step)].append(took(step))
            for at, seconds in alike.items():
                found[at] = min(median(seconds), found.get(at, float("inf")))
        return found


def fitted(points: Mapping[tuple[float, ...], float]) -> list[float]:
    """One factor for each number of the keys, none below 0: seconds ≈ Σ factor · number, of least relative error."""
    numbers, took = np.array(list(points)), np.maximum(1e-9, list(points.values()))
    scale = np.maximum(numbers.max(0), 1e-300)
    left = list(range(numbers.shape[1]))
    while left:
        columns = numbers[:, left] / scale[left] / took[:, None]
        factors = np.linalg.lstsq(columns, np.ones(len(took)), rcond=None)[0]
        if factors.min() >= 0:
            break
        left.pop(int(factors.argmin()))
    made = np.zeros(numbers.shape[1])
    made[left] = factors / scale[left]
    return made.tolist()
