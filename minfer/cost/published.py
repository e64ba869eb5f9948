"""Published figures: what others measured, and what the cost model says of it before it has seen any of them."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from minfer.core.checkpoint.shapes import random_config
from minfer.cost.cost_model import CostModel, Setup, Terms
from minfer.cost.formulas import Step
from minfer.cost.hardware import find_hardware

FILE = Path(__file__).parents[1] / "assets" / "published.json"


@dataclass(frozen=True)
class Published:
    """Decoding of one request, in tokens per second, averaged over `tokens` new ones after a short prompt."""

    model: str  # a shape, as in random:<shape>
    hardware: str
    weights: str
    phase: int  # of minfer that works alike: 3 operator by operator, 8 compiled and replayed
    tokens_per_s: float
    tokens: int
    source: str
    ranks: int = 1
    operations: int | None = None  # a layer's operators of that program
    fitted: bool = False  # a rate of the hardware's file was taken from it, so it proves nothing

    @property
    def setup(self) -> Setup:
        """As the cost model takes it."""
        return Setup(random_config(self.model), self.phase, self.weights, ranks=self.ranks, operations=self.operations)

    def predicted(self) -> Terms:
        """Seconds of a step in the middle of the answer."""
        return CostModel(self.setup, find_hardware(self.hardware)).step(Step.decode([max(1, self.tokens // 2)]))

    @property
    def error(self) -> float:
        """Predicted over published tokens per second, less 1."""
        return 1 / self.predicted().total / self.tokens_per_s - 1


@lru_cache(maxsize=1)
def published() -> tuple[Published, ...]:
    """All that are known, in the order of the file."""
    return tuple(Published(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8")))
