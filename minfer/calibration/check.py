"""Check: real steps of real engines beside their predictions; calibration has seen none of them."""

import copy
import random
import statistics
from dataclasses import dataclass
from typing import Any

from torch import nn

from minfer.bench.contestants import engine_class
from minfer.bench.variants import BLOCK, VARIANTS, Variant
from minfer.calibration.real_steps import submit_any
from minfer.cost.cost_model import CostModel
from minfer.cost.formulas import Step
from minfer.cost.hardware import Hardware

ROWS = ("Continuous batch", "BF16", "INT8", "Fused")
REPEATS = 7
BEFORE = 2
"""Tokens of an answer at the first step that is timed: one that the prompt's step draws, one of a step to warm up."""


@dataclass(frozen=True)
class Cell:
    """A kind of step, in seconds."""

    row: str
    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Decode:
    """A step that decodes one token of each of `batch` requests, each with `context` tokens."""

    batch: int
    context: int

    def __str__(self) -> str:
        return f"decode {self.batch} × 1 over {self.context}"

    @property
    def sizes(self) -> Step:
        """Of the step in the middle of those that are timed."""
        return Step.decode([self.context + BEFORE + REPEATS // 2] * self.batch, BLOCK)

    @property
    def held(self) -> int:
        """Tokens that the cache must have room for."""
        return self.batch * (self.context + 2 * REPEATS)

    def seconds(self, run: "Run") -> float:
        """Of the median step."""
        for _ in range(self.batch):
            run.submit(self.context, BEFORE + REPEATS + 1)
        for _ in range(BEFORE):
            run.step()
        took = [run.step() for _ in range(REPEATS)]
        run.step()  # in which all end: not counted
        return statistics.median(took)


@dataclass(frozen=True)
class Prefill:
    """A step that computes one prompt."""

    tokens: int
    batch = 1

    def __str__(self) -> str:
        return f"prefill {self.tokens}"

    @property
    def sizes(self) -> Step:
        """Of the step."""
        return Step.prefill(self.tokens)

    @property
    def held(self) -> int:
        """Tokens that the cache must have room for."""
        return self.tokens

    def seconds(self, run: "Run") -> float:
        """Of the median step; the first is not counted."""
        took = []
        for _ in range(4):
            run.submit(self.tokens, 1)
            took.append(run.step())
        return statistics.median(took[1:])


Kind = Decode | Prefill
KINDS: tuple[Kind, ...] = (
    *(Decode(1, 40), Decode(5, 130), Decode(8, 200), Decode(14, 90), Decode(18, 60)),
    *(Prefill(64), Prefill(300)),
)


class Run:
    """One engine and its requests, whose steps are timed."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.draw = random.Random(0)

    def submit(self, tokens: int, new: int) -> None:
        """A request of any ids."""
        submit_any(self.engine, self.draw, tokens, new)

    def step(self) -> float:
        """Seconds of the next step."""
        device = self.engine.device
        start = device.clock()
        self.engine.step()
        device.synchronize()
        return device.clock() - start


class Check:
    """The cells of some rows of the benchmark table.

    They are run in calibration's own passes, each row's right after the engine of its kind: a machine that is slower
    today than a minute ago is so for both.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.config: Any = module.config
        self.rows = {variant: Run(self.engine(variant)) for variant in VARIANTS if variant.name in ROWS}
        self.measured: dict[tuple[Variant, Kind], list[float]] = {}

    def run(self, kernels: str) -> None:
        """Once the cells of the rows that multiply with `kernels`."""
        for variant, run in self.rows.items():
            if variant.setup(self.config).kernels == kernels:
                for kind in KINDS:
                    self.measured.setdefault((variant, kind), []).append(kind.seconds(run))

    def cells(self, hardware: Hardware) -> list[Cell]:
        """Row by row, decode steps by batch and context, then prompts; of a cell's runs the least counts."""
        return [
            Cell(variant.name, str(kind), min(took), self.predicted(variant, kind, hardware))
            for variant in self.rows
            for (own, kind), took in self.measured.items()
            if own is variant
        ]

    def predicted(self, variant: Variant, kind: Kind, hardware: Hardware) -> float:
        """Seconds of a step."""
        return CostModel(variant.setup(self.config), hardware).step(kind.sizes).total

    def engine(self, variant: Variant) -> Any:
        """With room for the largest cell: its prompts begin in one step, and stay equally long."""
        most, batch = max(kind.held for kind in KINDS), max(kind.batch for kind in KINDS)
        options = {"num_blocks": 2 * most // BLOCK + 64, "token_budget": most, "share_prefixes": False}
        base = engine_class(variant.phase)
        own = copy.deepcopy(self.module).to(variant.dtype)
        return base(own, None, base.Options(max_batch=batch, **options, **dict(variant.options)))
