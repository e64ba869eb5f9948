"""Scripts that measure memory, each in a process of its own in which freed memory is given back at once.

From a size on, glibc maps what is asked for, and unmaps it when it is freed; smaller pieces come from a heap that
stays. That size grows with whatever is freed, so what stays resident varies from run to run; once set, it is fixed.
"""

import os
import subprocess
import sys

FIXED = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def lines(script: str, *arguments: object) -> list[str]:
    """What the script prints. Raises `CalledProcessError` if it fails."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=300, env={**os.environ, **FIXED}
    )
    return done.stdout.splitlines()
