"""Phase 5, continuous batching: every step is scheduled anew, over a KV cache in pages.

Problem   A static batch starts and ends together: finished rows leave holes, newcomers wait, and each row reserves
          memory for the longest answer that it might give.
Idea      A scheduler fills every step up to a token budget: one token for each running request, chunks of the prompts
          of new ones. Keys and values live in blocks of a shared pool, found through a block table, taken when a token
          needs them and given back at the end; requests that begin alike share the blocks of their common prefix.
Costs     In pure PyTorch the blocks are gathered into one tensor before attention: KV traffic doubles or trebles.
Loses     With one request at a time, and when all are of one length: then a static batch does the same with less work.
"""

from minfer.phase5.block_allocator import BlockAllocator
from minfer.phase5.engine import Engine
from minfer.phase5.options import PagedOptions
from minfer.phase5.paged_kv_cache import PagedAttention, PagedKVCache, PagedStep
from minfer.phase5.scheduler import Scheduler
from minfer.phase5.step import Step

__all__ = [
    "BlockAllocator",
    "Engine",
    "PagedAttention",
    "PagedKVCache",
    "PagedOptions",
    "PagedStep",
    "Scheduler",
    "Step",
]
