"""The processes that this one has started, as the system sees them."""

import os
import time
from pathlib import Path

MODULES = (b"minfer.phase10.worker", b"minfer.phase10.replica_worker", b"tests.ranks.dying")
"""What the processes of ranks and replicas run."""


def children(parent=None):
    """The ids of processes of ranks whose parent is `parent` (default: this process)."""
    parent = parent or os.getpid()
    return [pid for pid, above in _running() if above == parent]


def is_running(pid):
    """Whether there is such a process, zombies apart."""
    return pid in [running for running, _ in _running()]


def gone(pids, seconds=30.0):
    """Whether all are gone, or go within so many seconds."""
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _running():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        state, above = stat.rpartition(")")[2].split()[:2]
        if state != "Z" and any(module in command for module in MODULES):
            yield int(folder.name), int(above)
