"""GraphUsage: how many steps were replayed, why others were not, and what padding cost."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from minfer.phase8.buckets import Bucket


@dataclass
class GraphUsage:
    """Counted since the graphs were recorded."""

    replays: int = 0
    eager: Counter[str] = field(default_factory=Counter)
    """Steps that were not replayed, by reason: `prefill` (with chunks of prompts), `rows`, `width` (no such bucket)."""
    rows: int = 0
    bucket_rows: int = 0
    blocks: int = 0
    bucket_blocks: int = 0

    def replayed(self, rows: int, width: int, bucket: Bucket) -> None:
        """Count a step of `rows` rows, whose longest table has `width` blocks."""
        self.replays += 1
        self.rows += rows
        self.bucket_rows += bucket.rows
        self.blocks += rows * width
        self.bucket_blocks += bucket.rows * bucket.width

    @property
    def padded_rows(self) -> float:
        """The share of computed rows that were padding."""
        return 1 - self.rows / self.bucket_rows if self.bucket_rows else 0.0

    @property
    def padded_blocks(self) -> float:
        """The share of gathered blocks that were there only because of buckets."""
        return 1 - self.blocks / self.bucket_blocks if self.bucket_blocks else 0.0

    def figures(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "replays": self.replays,
            "eager": dict(self.eager),
            "padded_rows": self.padded_rows,
            "padded_blocks": self.padded_blocks,
        }
