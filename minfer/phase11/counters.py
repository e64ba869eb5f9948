"""Counters: what an engine has counted since it was made, so that a step can be told from the ones before it."""

from typing import Any, NamedTuple


class Counters(NamedTuple):
    """What an engine has counted so far."""

    preempted: int
    recompiles: int
    graph_rows: int
    graph_blocks: int
    rows: int
    communicated: int

    @classmethod
    def of(cls, engine: Any) -> "Counters":
        """Its counters as they are now."""
        usage, ranks = engine.usage, engine.ranks
        graphs = (usage.bucket_rows, usage.bucket_blocks, usage.rows)
        return cls(engine.scheduler.preemptions, engine.compilation.graphs, *graphs, ranks.nbytes if ranks else 0)

    def since(self, before: "Counters") -> "Counters":
        """What has been counted since `before` was read."""
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))
