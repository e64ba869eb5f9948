"""What the process of a rank that is not the first runs: `run_rank`, started by `Processes`.

It reads its job from standard input, serves until that closes, and says on standard output what it has done.
"""

import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from minfer.core.entry import find
from minfer.core.group import RankError
from minfer.phase10.job import Job
from minfer.phase10.meeting import LOCAL, connect, device_of
from minfer.phase10.shard_plan import Place


class Voice:
    """Standard output as rank 0 hears it: JSON lines. Whatever else prints goes to standard error."""

    def __init__(self) -> None:
        self.stream = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, what: str, **more: Any) -> None:
        """One line; rank 0 may be gone."""
        try:
            self.stream.write(json.dumps({"said": what, **more}) + "\n")
            self.stream.flush()
        except OSError:
            os._exit(1)


def leave_with_parent(parent: int) -> None:
    """End this process, wherever it is, when rank 0 closes the pipe or is gone."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], 1.0)
        if ready and not os.read(0, 1):
            break
    os._exit(0)


def read_line() -> bytes:
    """The job; unbuffered, since another thread reads on."""
    line = b""
    while not line.endswith(b"\n"):
        some = os.read(0, 65536)
        if not some:
            os._exit(0)
        line += some
    return line


def work(job: Job, voice: Voice) -> None:
    """Load the rank's shard and serve."""
    voice.say("started")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    place, device = Place.of(job.rank, job.parts, job.stages), device_of(job.options["device"], job.rank)
    store = dist.TCPStore(LOCAL, job.port, is_master=False)
    ranks = connect(store, place, device, job.timeout, LOCAL, place.world, say=voice.say)
    engine = find(*job.engine).load(job.model, **{**job.options, "ranks": ranks})
    engine.serve()


def run_rank() -> None:
    """The whole of a rank's process."""
    run(work)


def run(work: Callable[[Job, Voice], None]) -> None:
    """Do the job that comes, and end the process. 0: rank 0 has ended; 1: something has failed, and rank 0 was told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which then closes the pipe
    voice, parent = Voice(), os.getppid()
    job = Job.unpacked(read_line())
    threading.Thread(target=leave_with_parent, args=(parent,), daemon=True).start()
    try:
        work(job, voice)
    except RankError as error:
        voice.say("failed", error=str(error))
    except BaseException:
        voice.say("failed", error=traceback.format_exc(), is_cause=True)
    else:
        os._exit(0)
    sys.stderr.flush()
    os._exit(1)
