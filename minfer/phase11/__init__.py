"""Phase 11, profiling: every step is measured, always; and any run can be looked at operator by operator.

Problem   "It is slow" has no cause. A mean hides the request that waited; a clock that is read while the card still
          works shows impossible speed; and a profiler that one must first attach was not there when it happened.
Idea      A step takes a line in a log that is always on: who ran, how many tokens and how much padding, blocks, the
          parts of its time, what the arithmetic and the bytes must have been. Latencies are made of the timestamps that
          each request carries, by definitions that stand beside the numbers. torch.profiler explains the rest.
Costs     Some ten microseconds and no wait in a step; a few MB of memory, whatever the engine has lived through.
Loses     Where a step itself takes only tens of microseconds. And a profiled run is slower than it was: its shares are
          to be believed, its speed is not.
"""

from minfer.phase11.engine import Engine, ProfilingOptions
from minfer.phase11.limits import PRESETS, Limits
from minfer.phase11.memory import MemoryParts
from minfer.phase11.metrics import Metrics
from minfer.phase11.profile import Kernel, Profile
from minfer.phase11.step_log import StepLog

__all__ = [
    "PRESETS",
    "Engine",
    "Kernel",
    "Limits",
    "MemoryParts",
    "Metrics",
    "Profile",
    "ProfilingOptions",
    "StepLog",
]
