"""A rank that fails: `run_dying` for minfer's own `run_rank`; the environment says how and where."""

import os
import signal
import time

from minfer.phase10 import engine, gloo_group, worker

DIES = "MINFER_TEST_DIES"
"""`how:where`: raises, exits, killed or hangs; start, load, step or collective."""


def fail(how):
    """Fail in that way."""
    if how == "raises":
        raise ArithmeticError("planted in a rank")
    if how == "exits":
        os._exit(7)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def arm(how, where):
    """Let this process fail there."""
    if where == "start":
        fail(how)
    if where == "load":
        engine.build_shard = lambda *_: fail(how)
    if where == "step":
        engine.StepMessage.batch = lambda *_: fail(how)
    if where == "collective":
        gloo_group.GlooGroup.reduced = lambda *_: fail(how)


def run_dying():
    """The whole of its process."""
    arm(*os.environ[DIES].split(":"))
    worker.run_rank()
