"""Phase 10, multi-GPU: one model on several ranks, by tensor or pipeline parallelism or both; and replicas of it.

Problem   A model is larger than one card's memory, or reading its weights at each step takes one card too long.
Idea      Tensor: each rank has some heads and channels of every layer, and results are summed twice per layer.
          Pipeline: each stage has some layers. Rank 0 schedules and samples; the others compute what it announces.
          Replicas: whole engines that step by themselves, behind one queue; the one with the fewest requests is next.
Costs     Tensor: two all-reduces per layer and step, whose latency no bandwidth hides. Pipeline: a step is on one stage
          at a time, and the others wait. If one rank fails, all of them end.
Loses     When the model fits one card and batches are small: communication takes more than the halved work saves.
"""

from minfer.core.group import RankError
from minfer.phase10.engine import Engine, ParallelOptions
from minfer.phase10.shard_plan import Communication, Place, ShardPlan

__all__ = ["Communication", "Engine", "ParallelOptions", "Place", "RankError", "ShardPlan"]
