"""Phase 5's options: the pool, and how much a step may do."""

from dataclasses import dataclass

from minfer.core.errors import OptionsError
from minfer.core.options import at_least, option
from minfer.phase4 import BatchOptions


@dataclass(frozen=True)
class PagedOptions(BatchOptions):
    """Phase 5's options."""

    block_size: int = option(16, "tokens in a block of the KV cache")
    num_blocks: int | None = option(None, "blocks in the pool; default: see memory_share")
    memory_share: float = option(0.5, "most of the free memory that the pool may take, unless num_blocks is given")
    token_budget: int = option(512, "most tokens in one step, decodes and prompt chunks together")
    chunk_size: int | None = option(None, "most tokens of one prompt in one step; default: the token budget")
    share_prefixes: bool = option(True, "whether requests that begin alike share the blocks of that beginning")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "block_size", 1)
        at_least(self, "token_budget", 1)
        if self.token_budget < self.max_batch:
            raise OptionsError(
                f"token_budget = {self.token_budget} is below max_batch = {self.max_batch}: every running request "
                "needs its token in each step"
            )
        for name in ("num_blocks", "chunk_size"):
            if getattr(self, name) is not None:
                at_least(self, name, 1)
        if not 0 < self.memory_share <= 1:
            raise OptionsError(f"memory_share = {self.memory_share}: give a number above 0 and at most 1")
