"""GlooGroup: a group over Gloo, tuned for decode steps: two messages of a few kB in each layer.

Gloo runs a collective in a thread of its own, and needs two rounds for a sum. A small message arrives sooner if each
rank sends it to every other one at once, from the thread that computed it. Another thread of Gloo's receives messages;
`make_way` keeps it from interrupting the sender.
"""

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minfer.phase10.torch_group import TorchGroup

SMALL = 2**17
"""Bytes of a message up to which its latency, not its size, decides how long it takes."""

THREADS = Path("/proc/self/task")


class GlooGroup(TorchGroup):
    """Operations over Gloo. All ranks sum in the same order, so results are the same bit by bit."""

    def reduced(self, x: Tensor) -> Tensor:
        """As `Group`."""
        if x.nbytes > SMALL:
            return super().reduced(x)
        return torch.sum(self._exchanged("all_reduce", x, x.new_empty(self.size, *x.shape)), 0, out=x)

    def gathered(self, x: Tensor, into: Tensor) -> Tensor:
        """As `Group`."""
        return self._exchanged("all_gather", x.contiguous(), into) if x.nbytes <= SMALL else super().gathered(x, into)

    def spread(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        if x.nbytes > SMALL:
            return super().spread(x, source)
        if self.rank == source:
            self._do("broadcast", lambda: [self.made.send([x], other, 0) for other in self._others])
        else:
            self._do("broadcast", lambda: [self.made.recv([x], source, 0)])
        return x

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _exchanged(self, what: str, x: Tensor, into: Tensor) -> Tensor:
        """Everyone's `x`, in the order of ranks, in `into`: all are sent and received at the same time."""
        into[self.rank] = x

        def start() -> list[Any]:
            receiving = [self.made.recv([into[other]], other, 0) for other in self._others]
            return receiving + [self.made.send([x], other, 0) for other in self._others]

        self._do(what, start)
        return into


def gloo(store: Any, name: str, rank: int, size: int, host: str, timeout: float) -> Any:
    """A Gloo process group for tensors on the CPU, reached under `host` by the others."""
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    before = threads()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout)
    make_way(threads() - before)
    return dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, options)


def threads() -> set[int]:
    """The ids of this process's threads, where the system tells."""
    return {int(entry.name) for entry in THREADS.iterdir()} if THREADS.exists() else set()


def make_way(readers: set[int]) -> None:
    """Keep Gloo's reader threads from preempting the thread that sends.

    A sender holds the connection's lock. If an answer arrives meanwhile, it wakes this rank's reader; if the scheduler
    gives the reader the sender's core, it finds the lock taken and spins on it, without sleeping, until the next
    scheduler tick, up to 4 ms later: some twenty times as long as the message takes. A thread in Linux's batch class
    does not preempt: it waits until the core is free.
    """
    for thread in readers:
        with suppress(OSError):  # it is not allowed everywhere, and only a matter of speed
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
