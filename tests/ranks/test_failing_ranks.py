"""A rank that dies, fails or hangs ends everything soon, with its own error, and nobody is left behind."""

import time
from types import SimpleNamespace

import pytest
import torch

from minfer.phase10 import Engine, RankError, launcher, processes
from minfer.phase10.ranks import Ranks
from minfer.phase10.shard_plan import Place
from minfer.phase10.step_message import header_length
from tests.ranks.dying import DIES, run_dying
from tests.ranks.processes import children, gone

SECONDS = 100
TIMEOUT = 10.0
"""Seconds of a rank that hangs; one that does not, however slow its machine, is never silent for so long."""
SAID = {
    "raises": "ArithmeticError: planted in a rank",
    "exits": "rank 1 exited with code 7",
    "killed": "rank 1 was killed by SIGKILL",
    "hangs": f"for {TIMEOUT:g} s",
}
CASES = (
    *("exits:start", "raises:start", "raises:load", "hangs:load"),
    *("raises:step", "killed:step", "killed:collective", "hangs:collective"),
)


@pytest.fixture
def dying(monkeypatch):
    """Let ranks fail as that says."""

    def plant(case):
        monkeypatch.setattr(launcher, "run_rank", run_dying)
        if "hangs" in case:
            monkeypatch.setattr(processes, "GRACE_SECONDS", 0.2)  # for the words of a rank that says none
        monkeypatch.setenv(DIES, case)

    return plant


def test_an_end_in_the_middle_of_a_step_does_not_wait_for_a_rank_that_hangs():
    """As at the end of a process, where another thread is in the step: it would be as long as `rank_timeout`."""
    announced, ended = [], []
    group = SimpleNamespace(broadcast=announced.append, leave=lambda: None)
    ranks = Ranks(Place.of(0, 2, 1), None, (group,) * 3, 2, SimpleNamespace(end=lambda: ended.append("others")))
    ranks.header = header_length(1)
    with ranks.step():
        ranks.close()
    assert (announced, ended) == ([], ["others"])


@pytest.mark.parametrize("case", CASES)
def test_a_rank_that_fails_ends_all_with_its_error(lab, dying, case):
    dying(case)
    model, threads = lab.model("llama"), torch.get_num_threads()
    folder, start, failed = str(model.save(lab.new_folder())), time.monotonic(), []
    with pytest.raises(RankError) as caught:  # noqa: PT012 (it fails in one of the two)
        options = {"rank_timeout": TIMEOUT} if "hangs" in case else {}
        engine = Engine.load(folder, device="cpu", tensor_parallel=2, graph_batch=0, **options)
        failed.append(engine)
        start = time.monotonic()
        engine.generate([[5, 6, 7]])
    assert time.monotonic() - start < SECONDS
    how, where = case.split(":")
    assert SAID[how] in str(caught.value)
    assert len(failed) == (where in ("step", "collective"))
    assert gone(children(), seconds=0)
    assert torch.get_num_threads() == threads
    for engine in failed:
        with pytest.raises(RankError, match="have ended"):
            engine.generate([[5]])


def test_the_rank_that_failed_first_is_the_one_that_is_named(lab, dying):
    """The others only lose their connections to it."""
    dying("raises:collective")
    folder = str(lab.model("llama").save(lab.new_folder()))
    engine = Engine.load(folder, device="cpu", tensor_parallel=3, graph_batch=0)
    with pytest.raises(RankError, match="planted in a rank"):
        engine.generate([[5, 6, 7]])
    assert gone(children(), seconds=0)
