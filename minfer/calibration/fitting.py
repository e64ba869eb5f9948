"""Fitting: an engine's rates from what its real steps took. Each term is fitted by itself, to its own part of them."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

from minfer.calibration.real_steps import RealStep
from minfer.cost.cost_model import CostModel, Setup, decode_bytes, only_decodes, prompt_flops
from minfer.cost.hardware import Curve, EngineRates, Hardware, Line

Measure = Callable[[RealStep], Any]  # a size of a step, several sizes, or seconds
Choice = Callable[[RealStep], bool]
NOTHING = Line(0.0, 0.0)


def tokens(step: RealStep) -> int:
    """Tokens that it computes, of all requests together."""
    return step.sizes.tokens


def decoding(step: RealStep) -> bool:
    """Whether it computes one token of each request."""
    return only_decodes(step.sizes)


def any_step(step: RealStep) -> bool:
    """All of them."""
    return True


class Fit:
    """The rates of one engine, from several passes over the same steps.

    Of steps of one size the median within a pass is taken, since a step makes hundreds of calls, which take what such
    calls usually take; of the passes' medians the least, since what disturbs the machine in one is over in another.
    """

    def __init__(self, setup: Setup, machine: Hardware, passes: list[list[RealStep]]) -> None:
        self.model, self.passes = CostModel(setup, machine), passes
        self.formulas, self.layers = self.model.formulas, setup.config.num_layers
        decodes = [step for steps in passes for step in steps if decoding(step)]
        self.is_compiled = not any(step.parts["attention"] for step in decodes)

    def rates(self) -> EngineRates:
        """Every term, from the steps that have it."""
        formulas = self.formulas
        compiled, decode, gather = self.compiled() if self.is_compiled else (None, *self.paged())
        return EngineRates(
            layers=self.curve(tokens, lambda step: step.parts["layers"] / formulas.layer_weights),
            head=self.curve(lambda step: step.sizes.rows, lambda step: step.parts["head"] / formulas.head_weights),
            beside=self.curve(tokens, self.beside, self.attends_by_call),
            prefill=self.prefill(),
            decode=decode,
            gather=gather,
            host=self.line(lambda step: len(step.sizes.queries), lambda step: step.host, decoding),
            compiled=compiled,
            communication=self.communication(),
        )

    def attends_by_call(self, step: RealStep) -> bool:
        """Whether its attention is a call of its own, not compiled with what surrounds it."""
        return not (self.is_compiled and decoding(step))

    def beside(self, step: RealStep) -> float:
        """A layer's seconds that are in no part."""
        return step.beside / self.layers

    def kv_bytes(self, step: RealStep) -> float:
        """Bytes of keys and values that a layer's attention reads for single tokens."""
        return decode_bytes(step.sizes, self.formulas) / self.layers

    def compiled(self) -> tuple[Line, Line, Line]:
        """`compiled`, `decode` and `gather` where attention has no call of its own, and nothing is gathered.

        Of what a layer then takes beside products, attention is what grows with the bytes that it reads.
        """
        points = self.least(lambda step: (1.0, float(tokens(step)), self.kv_bytes(step)), self.beside, decoding)
        call, token, byte = fitted(points)
        return Line(call, token), Line(0.0, byte), NOTHING

    def paged(self) -> tuple[Line, Line]:
        """`decode` and `gather` where both are calls."""
        copied = self.line(
            lambda step: self.formulas.work(step.sizes).copied / self.layers,
            lambda step: step.parts["gather"] / self.layers,
            decoding,
        )
        return self.line(self.kv_bytes, lambda step: step.parts["attention"] / self.layers, decoding), copied

    def prefill(self) -> Line:
        """Attention of prompts, each in a call of its own."""
        points = self.least(
            lambda step: (float(len(step.sizes.queries)), prompt_flops(step.sizes, self.formulas) / self.layers),
            lambda step: step.parts["attention"] / self.layers,
            lambda step: all(query > 1 for query in step.sizes.queries),
        )
        return Line(*fitted(points))

    def communication(self) -> Line | None:
        """Of a step, by the bytes of all its messages."""
        if self.model.setup.ranks == 1:
            return None
        return self.line(
            lambda step: self.model.messages(step.sizes), lambda step: step.parts["communication"], any_step
        )

    # ---- how -----------------------------------------------------------------------------------------------------

    def curve(self, size: Measure, took: Measure, chosen: Choice = any_step) -> Curve:
        """What the chosen steps took, at all sizes but 0; a difference of clocks below nothing is nothing."""
        points = self.least(size, took, chosen)
        return Curve(tuple((at, max(points[at], 0.0)) for at in sorted(points) if at))

    def line(self, size: Measure, took: Measure, chosen: Choice) -> Line:
        """What the chosen steps took: a constant, and so much for each unit of size."""
        points = self.least(lambda step: (1.0, float(size(step))), took, chosen)
        return Line(*fitted(points))

    def least(self, size: Measure, took: Measure, chosen: Choice) -> dict[Any, float]:
        """What the chosen steps took, by size: of each pass's median the least."""
        found: dict[Any, float] = {}
        for steps in self.passes:
            alike: dict[Any, list[float]] = defaultdict(list)
            for step in filter(chosen, steps):
                alike[size(step)].append(took(step))
            for at, seconds in alike.items():
                found[at] = min(median(seconds), found.get(at, float("inf")))
        return found


def fitted(points: Mapping[tuple[float, ...], float]) -> list[float]:
    """One factor for each number in a key, so that seconds ≈ Σ factor · number, by least squares of relative errors.

    None is below 0: while the least squares have one, the lowest is left out, and becomes 0.
    """
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
