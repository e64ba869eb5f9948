"""Processes: the other ranks as processes that rank 0 has started: their signs of life, their errors, their end.

Each has a pipe to read from, through which rank 0 holds it: when that closes, by whatever end of rank 0, it leaves. On
its standard output it says, a JSON line each, what it has done; what else it prints goes to a file, for its last words.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import minfer
from minfer.core.entry import command
from minfer.core.group import RankError
from minfer.phase10.cores import CORES, OwnShare, run_on, share
from minfer.phase10.job import Job
from minfer.phase10.ranks import Others

START_SECONDS = 60.0
"""Within which a process must have imported torch."""

GRACE_SECONDS = 2.0
"""How long after the first sign of trouble rank 0 waits for the failed process's own words, or its end."""

LAST_WORDS = 2000  # characters


class Process:
    """One rank's process, or a replica's: `main` is all that it runs.

    `name` is what errors call it (`rank 1`); `threads` are torch's; `keep`: file descriptors that it inherits; `cores`:
    those that it may run on.
    """

    def __init__(
        self,
        name: str,
        job: Job,
        main: Callable[[], None],
        threads: int,
        keep: Sequence[int] = (),
        cores: Sequence[int] = CORES,
    ) -> None:
        self.name, self.rank = name, job.rank
        self.said: set[str] = set()
        self.error = ""
        self.is_cause = False  # else its error is only that others were gone
        self.heard = time.monotonic()
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process is buried)
        packed = job.packed()
        self.popen = subprocess.Popen(
            command(main),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.printed,
            env=environment(threads),
            pass_fds=keep,
        )
        run_on(cores, self.popen.pid)  # before it has any other threads
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        self.stdin.write(packed)
        self.stdin.flush()
        self.listener = threading.Thread(target=self.listen, daemon=True, name=f"{name} says")
        self.listener.start()

    def listen(self) -> None:
        """Take down what it says, to the end."""
        for line in self.stdout:
            said = json.loads(line)
            self.said.add(said["said"])
            self.error = said.get("error", self.error)
            self.is_cause = said.get("is_cause", self.is_cause)
            self.heard = time.monotonic()

    @property
    def is_dead(self) -> bool:
        """Whether it has ended or failed."""
        return bool(self.error) or self.popen.poll() is not None

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end: whether it came."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        return self.is_dead

    def obituary(self) -> str:
        """What it died of, in its own words if it had any."""
        self.listener.join(1.0)
        if self.error:
            return f"{self.name} failed:\n{self.error}"
        code = self.popen.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"{self.name} {how}{self.last_words()}"

    def last_words(self) -> str:
        """The end of what it printed, until it is buried."""
        text = ""
        with suppress(ValueError):  # the file is closed
            self.printed.seek(0)
            text = self.printed.read().decode(errors="replace").strip()
        return f"; it printed:\n{text[-LAST_WORDS:]}" if text else ""

    def let_go(self) -> None:
        """Close its pipe, on which it leaves."""
        with suppress(OSError):
            self.stdin.close()

    def bury(self, timeout: float) -> None:
        """Wait for its end; if that does not come, kill it."""
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.listener.join(1.0)
        self.stdout.close()
        self.printed.close()


class Processes(Others):
    """All other ranks' processes, on this machine; all ranks share evenly the cores and threads that this process had.

    Each has cores of its own: all wait for the slowest twice in a layer, and where two of them take turns on one core
    while another is free, that is as long as the scheduler lets each have it.
    """

    def __init__(self, job: Job, main: Callable[[], None], world: int, timeout: float) -> None:
        self.timeout = timeout
        self.share = OwnShare(world)
        self.all: list[Process] = []
        try:
            for rank in range(1, world):
                cores = share(CORES, rank, world)
                self.all.append(Process(f"rank {rank}", replace(job, rank=rank), main, self.share.threads, cores=cores))
        except BaseException:
            self.end()
            raise

    def started(self) -> None:
        """Wait until all are there."""
        try:
            self.wait_for("started", START_SECONDS)
        except RankError as error:
            raise self.blame(error) from error

    def loaded(self) -> None:
        """As `Others`; each tensor that a rank has read is a sign of life."""
        self.wait_for("loaded", self.timeout)

    def wait_for(self, what: str, timeout: float) -> None:
        """Until all have said `what`, as long as none fails and none is silent for `timeout` seconds."""
        since = time.monotonic()
        while waiting := [process for process in self.all if what not in process.said]:
            silent = [p for p in waiting if time.monotonic() - max(p.heard, since) > timeout]
            if any(process.is_dead for process in self.all) or silent:
                late = (silent or waiting)[0].rank
                raise RankError(f"rank {late} has not {what}, and said nothing for {timeout:g} s")
            time.sleep(0.005)

    def blame(self, error: RankError) -> RankError:
        """As `Others`: a rank that failed by itself, else one that died; if none did, all hang, as `error` says."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not any(p.is_dead for p in self.all) and time.monotonic() < deadline:
            time.sleep(0.01)
        while not any(p.is_cause or p.popen.poll() for p in self.all) and time.monotonic() < deadline:
            time.sleep(0.01)
        dead = sorted((p for p in self.all if p.is_dead), key=lambda p: (bool(p.error), not p.is_cause))
        causes = [p for p in dead if p.is_cause] or [p for p in dead if not p.error] or dead
        if causes:
            return RankError(causes[0].obituary())
        silent = any("started" not in process.said for process in self.all)
        limit = "in time" if silent else f"for {self.timeout:g} s (rank_timeout)"
        return RankError(f"no rank has failed, but one gave no answer {limit}: {error}")

    def end(self) -> None:
        """As `Others`."""
        processes, self.all = self.all, []
        for process in processes:
            process.let_go()
        for process in processes:
            process.bury(timeout=1.0)
        self.share.give_back()


def environment(threads: int) -> dict[str, str]:
    """A child's: it finds this very minfer, and has as many threads as it may use."""
    package = str(Path(minfer.__file__).parents[1])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": str(threads)}
    return {**{k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}, **ours}
