"""Phase 8's change: `allocate` records decode steps as graphs, `forward` replays them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from minfer.core.batch import ForwardBatch
from minfer.core.errors import OptionsError
from minfer.core.options import at_least, option
from minfer.phase7 import Engine as Phase7Engine
from minfer.phase7 import FusionOptions
from minfer.phase8.buckets import SHARE, Buckets, gathered_bytes
from minfer.phase8.decode_graphs import DecodeGraphs
from minfer.phase8.usage import GraphUsage


@dataclass(frozen=True)
class GraphOptions(FusionOptions):
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


class Engine(Phase7Engine):
    """A step that only decodes is replayed; any other is computed as before."""

    Options = GraphOptions
    options: GraphOptions

    def allocate(self) -> None:
        """As before; then the graphs, which are of this pool and no other."""
        self.usage = GraphUsage()
        self.graphs: DecodeGraphs | None = None  # those of an earlier pool would keep it
        self.buckets = self.make_buckets()
        super().allocate()
        needed, free = self.capture_bytes, self.device.free_memory()
        if needed > free:
            raise OptionsError(
                f"graphs of up to {self.buckets.most_rows} rows need about {needed:,} bytes beside the pool of "
                f"{self.cache.num_blocks} blocks, {free:,} are free: lower graph_batch or num_blocks"
            )
        self.graphs = DecodeGraphs(self.model, self.cache, self.device, self.buckets)

    def make_buckets(self) -> Buckets:
        """The sizes of step that are recorded: as wide as the context, or as the pool if that is smaller."""
        options = self.options
        rows = options.max_batch if options.graph_batch is None else options.graph_batch
        width = -(-self.context // options.block_size)
        room = self.device.free_memory() // SHARE
        most = room // gathered_bytes(self.config, options.block_size, self.dtype)
        return Buckets(rows, min(width, options.num_blocks or width), most)

    @property
    def capture_bytes(self) -> int:
        """About what the graphs take, beside the pool and what any step takes."""
        return self.buckets.most_blocks * gathered_bytes(self.config, self.options.block_size, self.dtype)

    def blocks_that_fit(self) -> int:
        """As before, but with room beside the pool for the graphs, and in it for the scratch block."""
        room = self.device.free_memory() - self.capture_bytes
        block = self.options.block_size * self.config.kv_numbers_per_token * self.dtype.itemsize
        return max(1, min(super().blocks_that_fit(), room // block - 1))

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows."""
        if self.graphs is None or batch.attention != self.cache.layers:  # a prompt is scored without the cache
            return super().forward(batch)
        step = self.cache.step
        if step.segments or len(batch.rows) < len(step.slots):  # chunks of prompts; one of one token has no row
            return self.eager(batch, "prefill")
        rows, width = step.tables.shape
        bucket = self.buckets.holding(rows, width)
        if bucket is None:
            return self.eager(batch, "rows" if rows > self.buckets.most_rows else "width")
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
