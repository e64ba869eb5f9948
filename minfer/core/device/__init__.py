"""Device: the only door to the hardware. Every phase runs on a CPU through it, and tests put a simulated one there.

Nothing else in minfer calls `torch.cuda`.
"""

from minfer.core.device.cpu import CPU
from minfer.core.device.cuda import CUDA, EventStopwatch
from minfer.core.device.device import DTYPES, Device
from minfer.core.device.work import Graph, Moment, Stopwatch, Stream

__all__ = ["CPU", "CUDA", "DTYPES", "Device", "EventStopwatch", "Graph", "Moment", "Stopwatch", "Stream"]
