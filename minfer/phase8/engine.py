"""Phase 8's change: `allocate` records decode steps as graphs, `forward` replays them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from minfer.core.batch import ForwardBatch
from minfer.core.errors import OptionsError
from minfer.core.options import at_least, option
from minfer.phase5 import Engine as PreviousEngine
from minfer.phase5 import PagedKVCache
from minfer.phase5 import PagedOptions as PreviousOptions
from minfer.phase8.buckets import Buckets
from minfer.phase8.decode_graphs import DecodeGraphs
from minfer.phase8.usage import GraphUsage


@dataclass(frozen=True)
class GraphOptions(PreviousOptions):
    """Phase 8's options."""

    graph_batch: int | None = option(None, "most requests in a step that is replayed as a graph; default: max_batch")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.graph_batch is not None:
            at_least(self, "graph_batch", 0)
            if self.graph_batch > self.max_batch:
                raise OptionsError(
                    f"graph_batch = {self.graph_batch} is above max_batch = {self.max_batch}: no step has so many rows"
                )


class Engine(PreviousEngine):
    """A step that only decodes is replayed; any other is computed as before."""

    Options = GraphOptions
    options: GraphOptions

    def allocate(self) -> None:
        """As before; then the graphs, which are of this pool and no other."""
        self.usage = GraphUsage()
        self.graphs: DecodeGraphs | None = None  # those of an earlier pool would keep it
        super().allocate()
        blocks = self.cache.num_blocks
        buckets, needed, free = self.buckets(blocks), self.capture_bytes(blocks), self.device.free_memory()
        if needed > free:
            raise OptionsError(
                f"graphs of up to {buckets.rows[-1]} rows need about {needed:,} bytes beside the pool of {blocks} "
                f"blocks, {free:,} are free: lower graph_batch or num_blocks"
            )
        self.graphs = DecodeGraphs(self.model, self.cache, self.device, buckets)

    def blocks_that_fit(self) -> int:
        """As before, but the graphs must fit beside the pool too."""
        blocks = super().blocks_that_fit()
        room = self.device.free_memory() - self.capture_bytes(blocks)
        return max(1, min(blocks, room // PagedKVCache.block_bytes(self.config, self.options.block_size, self.dtype)))

    def buckets(self, num_blocks: int) -> Buckets:
        """The sizes of step that are recorded beside a pool of so many blocks."""
        options = self.options
        rows = options.max_batch if options.graph_batch is None else options.graph_batch
        return Buckets(rows, -(-self.context // options.block_size), num_blocks)

    def capture_bytes(self, num_blocks: int) -> int:
        """About what the graphs beside such a pool take."""
        return self.buckets(num_blocks).capture_bytes(self.config, self.options.block_size, self.dtype)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows."""
        if self.graphs is None or batch.attention != self.cache.layers:  # a prompt is scored without the cache
            return super().forward(batch)
        step = self.cache.step
        if step.segments or len(batch.rows) < len(step.slots):  # chunks of prompts; one of one token has no row
            return self.eager(batch, "prefill")
        rows, width = step.tables.shape
        bucket = self.graphs.buckets.holding(rows, width)
        if bucket is None:
            return self.eager(batch, "rows" if rows > max(self.graphs.buckets.rows, default=0) else "width")
        self.usage.replayed(rows, width, bucket)
        return self.graphs.replay(bucket, batch, step)

    def eager(self, batch: ForwardBatch, reason: str) -> Tensor:
        """A step that is not replayed, and why."""
        self.usage.eager[reason] += 1
        return super().forward(batch)

    def graph_usage(self) -> dict[str, Any]:
        """What is recorded, what was replayed and what padding cost, as plain JSON values; see `GraphUsage`."""
        assert self.graphs is not None
        with self.stepping:
            return {"graphs": len(self.graphs.graphs), "bytes": self.graphs.nbytes, **self.usage.figures()}
