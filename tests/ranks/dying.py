"""A rank that fails: `python -m tests.ranks.dying` for minfer's own worker; the environment says how and where."""

import os
import signal
import time

from minfer.phase10 import engine, torch_group, worker

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
        torch_group.TorchGroup.reduced = lambda *_: fail(how)


if __name__ == "__main__":
    arm(*os.environ[DIES].split(":"))
    worker.main()
