"""Phase 8, CUDA graphs: a decode step is launched as a whole, as it was recorded, without Python.

Problem   A decode step is hundreds of small kernels: where each is shorter than its launch, the card waits for Python.
Idea      Record the step once, replay it as one launch. A graph is fixed in shapes and addresses: so there is one for
          each bucket of batch size and context width, over static buffers that are filled before each replay; rows of
          padding read and write the scratch block only.
Costs     Seconds at load and the memory of the largest bucket; padding, up to twice the rows and twice the width.
Loses     In prefills and mixed steps, which run as before; with large models and batches, whose kernels outlast their
          launches; on a CPU, which has no launches to save and computes the padding all the same (graph_batch=0 turns
          graphs off).
"""

from minfer.phase7 import (
    FusedModel,
    PackedLinear,
    PagedStep,
    PerChannel,
    Product,
    QuantizedLinear,
    Scheme,
    Step,
    exchange_hollow,
    find_scheme,
)
from minfer.phase8.buckets import Bucket, Buckets
from minfer.phase8.decode_graphs import DecodeGraphs
from minfer.phase8.engine import Engine, GraphOptions
from minfer.phase8.usage import GraphUsage

__all__ = [
    "Bucket",
    "Buckets",
    "DecodeGraphs",
    "Engine",
    "FusedModel",
    "GraphOptions",
    "GraphUsage",
    "PackedLinear",
    "PagedStep",
    "PerChannel",
    "Product",
    "QuantizedLinear",
    "Scheme",
    "Step",
    "exchange_hollow",
    "find_scheme",
]
