"""Phase 3, the KV cache: keys and values of past tokens are kept, so a step computes only what is new.

Problem   Phase 1 recomputes at step t what step t-1 knew: keys and values of a token depend only on what precedes it.
Idea      Store each layer's k and v; feed only tokens that the cache does not hold: all of the prompt, then one.
Costs     Memory: 2 · layers · tokens · kv_heads · head_dim · bytes. Heads are stored unexpanded, as GQA made them.
Loses     On short prompts with few new tokens, and on a device that is idle between kernels anyway: little is saved.
"""

from minfer.phase3.engine import Engine, EngineOptions
from minfer.phase3.kv_cache import KVCache, KVUsage

__all__ = ["Engine", "EngineOptions", "KVCache", "KVUsage"]
