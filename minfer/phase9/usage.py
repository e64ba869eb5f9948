"""OverlapUsage: how many steps ran beside the host's work on the one before, and why others did not."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class OverlapUsage:
    """Counted since the engine was made; each step that has landed counts once."""

    overlapped: int = 0
    """Steps whose tokens were read when the next one had been launched."""
    alone: Counter[str] = field(default_factory=Counter)
    """The others, by reason: `host` (it does all the work itself, as on a CPU), `last` (no request had anything to do
    next), `penalties` (a draw depends on what was drawn before), `logprobs` (they are read with the draw), `failure`
    (requests are run one by one to find a culprit)."""

    def landed(self, obstacle: str) -> None:
        """Count a step; empty: it was overlapped."""
        if obstacle:
            self.alone[obstacle] += 1
        else:
            self.overlapped += 1

    def figures(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {"overlapped": self.overlapped, "alone": dict(self.alone)}
