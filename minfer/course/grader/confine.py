"""Confine: run a command with bounds on memory and files: `python -m minfer.course.grader.confine BYTES COMMAND…`.

A process of its own sets the limits and becomes the command, so nothing runs between a fork and an exec.
"""

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

FILE_BYTES = 256 * 2**20
NAMESPACES = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")


def main() -> None:
    """Set the limits and become the command."""
    memory, *command = sys.argv[1:]
    limit(int(memory))
    os.execvp(command[0], command)


def limit(memory: int) -> None:
    """Bound what this process and its children may take; nothing where the system has no such limits."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, bound in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        lower = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (lower, lower))


@lru_cache
def namespaces() -> tuple[str, ...]:
    """What to put before a command so that it has no network and leaves no process behind; () if refused."""
    if shutil.which(NAMESPACES[0]) is None:
        return ()
    tried = subprocess.run([*NAMESPACES, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    return NAMESPACES if tried.returncode == 0 else ()


def children_of(pid: int) -> list[int]:
    """The processes that this one has started and not yet waited for, by their numbers as seen from here."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended, or the system keeps no such list
        return []


if __name__ == "__main__":
    main()
