"""Phase 7, fusion: fewer and larger products, and everything between them compiled into one region.

Problem   At batch 1 a step is hundreds of small operators: each reads and writes memory, and starts and joins threads.
Idea      Merge q, k, v and gate, up into one product each; compile what lies between two attentions (residual, norms,
          activation, rotary) once, for all layers and any number of rows; choose each product's form by where it runs.
Costs     Seconds of compiling when the engine is made; a C++ compiler (CPU) or Triton (GPU), else fused but eager.
Loses     When an engine lives only for a few tokens, and for long prompts, where the products are all that matters.
"""

from minfer.phase6 import PagedKVCache, PagedStep, PerChannel, QuantizedLinear, Scheme, Step, find_scheme
from minfer.phase7.compilation import Compilation
from minfer.phase7.engine import Engine, FusionOptions
from minfer.phase7.fused_model import FusedModel
from minfer.phase7.product import PackedLinear, Product

__all__ = [
    "Compilation",
    "Engine",
    "FusedModel",
    "FusionOptions",
    "PackedLinear",
    "PagedKVCache",
    "PagedStep",
    "PerChannel",
    "Product",
    "QuantizedLinear",
    "Scheme",
    "Step",
    "find_scheme",
]
