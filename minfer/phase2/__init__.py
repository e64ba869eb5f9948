"""Phase 2, GPU loading: weights go straight to the device, one tensor at a time, in the dtype they are used in.

Problem   Phase 1 builds the model in host memory with weights that nobody wants, fills it, then copies the whole: two
          models at once, in the widest dtype, before the first token.
Idea      Build the module on `meta` (shapes without memory); then read, convert and place one tensor after another.
Costs     Peak memory is the final weights plus the largest tensor. `MemoryBudget` says beforehand what fits.
Loses     Never on memory; the time is that of reading the file.
"""

from minfer.phase2.engine import Engine, EngineOptions
from minfer.phase2.memory import MemoryBudget

__all__ = ["Engine", "EngineOptions", "MemoryBudget"]
