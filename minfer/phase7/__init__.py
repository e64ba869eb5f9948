"""Phase 7, fusion: fewer and larger products, and everything between them compiled into one region.

Problem   At batch 1 a step is hundreds of small operators, each of which reads and writes memory, and wakes threads on
          a CPU or launches a kernel on a GPU.
Idea      Merge q, k, v and gate, up into one product each; compile what lies between two attentions (residual, norms,
          activation, rotary) once, for all layers and any number of rows; lay each weight out as the device wants it.
Costs     Seconds of compiling when the engine is made. It needs a C++ compiler (CPU) or Triton (GPU); without one, the
          products are merged and the rest runs uncompiled.
Loses     When an engine lives only for a few tokens, and for long prompts, where the products are all that matters.
"""

from minfer.phase6 import (
    PagedKVCache,
    PagedStep,
    PerChannel,
    QuantizedLinear,
    Scheme,
    Step,
    exchange_hollow,
    find_scheme,
)
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
    "exchange_hollow",
    "find_scheme",
]
