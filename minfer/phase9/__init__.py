"""Phase 9, streams: host, model and copies work beside each other, each on a queue of its own.

Problem   Between two steps the card waits while the host reads tokens, makes text of them, and schedules.
Idea      Launch step t + 1 before the tokens of step t are read: it takes them on the device, where they were drawn;
          the host learns of them by a copy on a second stream, while the card computes. Likewise the weights of some
          layers may stay in host memory (`offload_layers`), each fetched while layers before it compute.
Costs     That a request has ended is noticed one step late: the row that was computed for nothing is thrown away.
          Offloaded weights cross the bus in every step; the card holds those of two layers at a time.
Loses     On a CPU, where nothing runs beside the host, so no step is launched ahead; with large batches, whose steps
          outlast the host's work by far; with penalties and log-probabilities, for which the host must have read the
          last token before the next step (see `overlap_usage`).
"""

from minfer.phase8 import PagedStep, PerChannel, QuantizedLinear, Scheme, exchange_hollow, find_scheme
from minfer.phase9.copy_stream import CopyStream
from minfer.phase9.engine import Engine
from minfer.phase9.flight import Flight
from minfer.phase9.options import StreamOptions
from minfer.phase9.usage import OverlapUsage
from minfer.phase9.weight_stream import WeightStream

__all__ = [
    "CopyStream",
    "Engine",
    "Flight",
    "OverlapUsage",
    "PagedStep",
    "PerChannel",
    "QuantizedLinear",
    "Scheme",
    "StreamOptions",
    "WeightStream",
    "exchange_hollow",
    "find_scheme",
]
