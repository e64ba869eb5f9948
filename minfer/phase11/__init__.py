"""Phase 11, profiling: every step is measured, always; and any run can be looked at operator by operator.

Problem   "It is slow" has no cause. A mean hides the request that waited; a clock that is read while the card still
          works shows impossible speed; and a profiler that one must first attach was not there when it happened.
Idea      A step takes a line in a log that is always on: who ran, how many tokens and how much padding, blocks, the
          parts of its time, the least arithmetic and traffic that it needs. Latencies are computed from the timestamps
          that each request carries, by definitions that stand beside the numbers. torch.profiler explains the rest.
Costs     Some ten microseconds a step, which never waits for the device; a few MB, however long the engine has run.
Loses     Where a step itself takes only tens of microseconds. And torch.profiler slows a run down: believe its shares,
          not its speed.
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
