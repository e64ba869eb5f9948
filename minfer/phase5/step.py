"""Step: one turn of the scheduler's requests, from its launch until what it has drawn is taken in."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from minfer.core.sequence import Sequence


@dataclass
class Step:
    """Who is computed, and whose tokens are drawn; those are known when the step has landed."""

    scheduled: list[Sequence]
    drawing: list[Sequence] = field(default_factory=list)
    token_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # int64 (drawing,)
    error: Exception | None = None
    """What went wrong; nothing that the step did may be believed then."""
