"""Cores: those of this process, dealt out to the ranks of an engine, and taken back when no engine has a share."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

import torch

from minfer.phase10.shard_plan import deal

CORES: Sequence[int] = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()
"""Those that this process may run on; unknown on macOS."""


def share(cores: Sequence[int], rank: int, world: int) -> Sequence[int]:
    """The cores of a rank, as even as can be; all of them if there are not enough for each to have its own."""
    own = deal(len(cores), rank, world)
    return cores[own.start : own.stop] if len(cores) >= world else cores


def run_on(cores: Sequence[int], thread: int) -> None:
    """Let a thread, or a process that has one yet, run on these cores only, and all threads that it starts."""
    if cores:
        with suppress(OSError):  # it has ended, or may not: it is only a matter of speed
            os.sched_setaffinity(thread, cores)


class OwnShare:
    """Rank 0's share of cores and torch's threads, in the thread that loads an engine of `world` ranks.

    Several engines may have one at a time, and give it back in any order: the last one brings back what was before all.
    """

    held: "list[OwnShare]" = []  # noqa: RUF012 (of all engines of this process)
    threads_before = 1

    def __init__(self, world: int) -> None:
        if not self.held:
            OwnShare.threads_before = torch.get_num_threads()
        self.thread = threading.get_native_id()
        self.threads = max(1, self.threads_before // world)
        self.held.append(self)
        torch.set_num_threads(self.threads)
        run_on(share(CORES, 0, world), self.thread)

    def give_back(self) -> None:
        """Idempotent."""
        if self not in self.held:
            return
        self.held.remove(self)
        if not self.held:
            torch.set_num_threads(self.threads_before)
        if all(other.thread != self.thread for other in self.held):
            run_on(CORES, self.thread)
