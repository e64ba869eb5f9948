"""Phase 1, the basic loop: recompute everything at every step.

Problem   A model maps tokens to the probabilities of the next one; a user wants text.
Idea      Forward all tokens, take the last row of logits, draw a token, append it, repeat.
Costs     Step t runs the model over all t tokens, so n tokens cost n(n+1)/2 token computations.
Loses     Always, in speed. But no state that could be wrong survives a step: it is the baseline and the oracle.
"""

from minfer.phase1.engine import Engine, EngineOptions

__all__ = ["Engine", "EngineOptions"]
