"""Phase 4, static batching: several requests in one forward, so the weights are read once for all of them.

Problem   A decode step of one request reads every weight to make one token; memory bandwidth is the limit.
Idea      Stack B requests in one padded batch `(B, T)`: one pass over the weights makes B tokens. Each row has its own
          positions and mask; a row that has finished leaves the batch, so it costs nothing more.
Costs     Padding: every row is computed and cached to the width of the longest; KV memory for B · longest tokens.
Loses     When lengths differ much, and when requests come one by one: a batch starts together, and the last row keeps
          the next batch waiting.
"""

from minfer.phase3 import KVUsage
from minfer.phase4.batch_kv_cache import BatchKVCache
from minfer.phase4.engine import BatchOptions, Engine

__all__ = ["BatchKVCache", "BatchOptions", "Engine", "KVUsage"]
