"""Check: real steps of real engines beside their predictions; calibration has seen none of them."""

import copy
import random
import statistics
from dataclasses import dataclass
from typing import Any

from torch import nn

from minfer.bench.contestants import engine_class
from minfer.bench.variants import BLOCK, VARIANTS, Variant
from minfer.core.device import Device
from minfer.core.params import SamplingParams
from minfer.cost.cost_model import CostModel
from minfer.cost.formulas import Step
from minfer.cost.hardware import Hardware

ROWS = ("Continuous batch", "BF16", "INT8", "Fused")
DECODES = ((1, 40), (5, 130), (8, 200), (14, 90), (18, 60))  # batch, context
PREFILLS = (64, 300)
REPEATS = 7


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


def decoded(batch: int, context: int) -> Step:
    """The sizes of the step in the middle of those that are timed of a cell."""
    return Step.decode([context + REPEATS // 2] * batch, BLOCK)


class Check:
    """The cells of some rows of the benchmark table.

    They are run in calibration's own passes, each row's right after the engine of its kind: a machine that is slower
    today than a minute ago is so for both.
    """

    def __init__(self, module: nn.Module, device: Device) -> None:
        self.module, self.device = module, device
        self.config: Any = module.config
        self.draw = random.Random(0)
        self.rows = {variant: self.engine(variant) for variant in VARIANTS if variant.name in ROWS}
        self.measured: dict[tuple[Variant, str, Step], list[float]] = {}

    def run(self, kernels: str) -> None:
        """Once the cells of the rows that multiply with `kernels`."""
        for variant, engine in self.rows.items():
            if variant.setup(self.config).kernels != kernels:
                continue
            for batch, context in DECODES:
                name, step = f"decode {batch} × 1 over {context}", decoded(batch, context)
                self.measured.setdefault((variant, name, step), []).append(self.decode(engine, batch, context))
            for tokens in PREFILLS:
                name, step = f"prefill {tokens}", Step.prefill(tokens)
                self.measured.setdefault((variant, name, step), []).append(self.prefill(engine, tokens))

    def cells(self, hardware: Hardware) -> list[Cell]:
        """Row by row, decode steps by batch and context, then prompts; of a cell's runs the least counts."""
        return [
            Cell(variant.name, name, min(took), CostModel(variant.setup(self.config), hardware).step(step).total)
            for variant in self.rows
            for (own, name, step), took in self.measured.items()
            if own is variant
        ]

    def engine(self, variant: Variant) -> Any:
        """With room for the largest cell; no prefix is found again."""
        most = max(batch * (context + 2 * REPEATS) for batch, context in DECODES)
        options = {"num_blocks": 2 * most // BLOCK + 64, "share_prefixes": False, **dict(variant.options)}
        base = engine_class(variant.phase)
        return base(
            copy.deepcopy(self.module).to(variant.dtype),
            None,
            base.Options(max_batch=max(batch for batch, _ in DECODES), **options),
        )

    def prompt(self, tokens: int) -> list[int]:
        """Any ids."""
        return [self.draw.randrange(3, self.config.vocab_size) for _ in range(tokens)]

    def decode(self, engine: Any, batch: int, context: int) -> float:
        """Median seconds of a step that decodes one token of each of `batch` requests, each with `context` tokens."""
        params = SamplingParams(max_tokens=REPEATS + 3, ignore_eos=True)
        running = [engine.submit(self.prompt(context), params) for _ in range(batch)]
        while not all(sequence.output_ids for sequence in running):
            engine.step()
        engine.step()
        took = []
        while not any(sequence.finished for sequence in running):
            took.append(self.step(engine))
        while not all(sequence.finished for sequence in running):
            engine.step()
        return statistics.median(took[:REPEATS])

    def prefill(self, engine: Any, tokens: int) -> float:
        """Median seconds of a step that computes one prompt."""
        took = []
        for _ in range(4):
            engine.submit(self.prompt(tokens), SamplingParams(max_tokens=1, ignore_eos=True))
            took.append(self.step(engine))
        return statistics.median(took[1:])

    def step(self, engine: Any) -> float:
        """Seconds of the next step."""
        start = self.device.clock()
        engine.step()
        self.device.synchronize()
        return self.device.clock() - start
