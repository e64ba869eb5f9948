"""Phase 6, quantization: the weights of linear layers in 16, 8 or 4 bits, multiplied without widening them first.

Problem   Decoding reads every weight once per step: its speed, and what fits a card, are bytes per weight.
Idea      Keep a code of few bits per weight and a scale per output channel (int8, fp8) or per group of columns (int4);
          `QuantizedLinear` puts them into the storage of the fastest kernel for the device and the rows' dtype.
Costs     Quality: `minfer quality` shows perplexity, divergence and the greedy match beside the unquantised model.
Loses     With many rows at once, which are bound by arithmetic; and where no kernel takes the codes, so that each
          product has to make the wide weight again.
"""

from minfer.phase5 import PagedAttention, PagedKVCache, PagedStep, Step
from minfer.phase6.engine import Engine, QuantizationOptions
from minfer.phase6.fbgemm import FbgemmInt8, unit_rows
from minfer.phase6.names import find_scheme
from minfer.phase6.packed_mm import Int8Pack
from minfer.phase6.quantized_linear import QuantizedLinear
from minfer.phase6.schemes import PerChannel, Scheme
from minfer.phase6.stored import exchange_hollow

__all__ = [
    "Engine",
    "FbgemmInt8",
    "Int8Pack",
    "PagedAttention",
    "PagedKVCache",
    "PagedStep",
    "PerChannel",
    "QuantizationOptions",
    "QuantizedLinear",
    "Scheme",
    "Step",
    "exchange_hollow",
    "find_scheme",
    "unit_rows",
]
