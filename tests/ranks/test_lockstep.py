"""Ranks in lockstep: whoever waits for what cannot come is told at once, and what each was at."""

import pytest
import torch

from minfer.core.group import RankError
from minfer.course.machines import lockstep
from minfer.course.machines.lockstep import Lockstep

pytestmark = pytest.mark.timeout(100)


@pytest.fixture(autouse=True)
def nobody_is_late(monkeypatch):
    """Only what can be known without waiting ends a test here in time."""
    monkeypatch.setattr(lockstep, "PATIENCE", 3600.0)


def test_ranks_that_wait_for_each_other_in_two_groups_are_told_where_each_is():
    world, number = Lockstep(), torch.ones(1)
    world.start(2, lambda rank: world.group(rank, (0, 1)).broadcast(number.clone()))
    world.group(0, (0, 1))
    with pytest.raises(RankError, match=r"rank 0 in all_reduce of \(1,\) .*; rank 1 in broadcast from 0 of \(1,\)"):
        world.group(0, (0, 1)).all_reduce(number)
    assert "all wait, and for each other" in world.failure()


def test_a_rank_that_nobody_is_left_to_meet_is_told():
    world = Lockstep()
    world.start(2, lambda rank: None)
    with pytest.raises(RankError, match=r"rank 0 in all_reduce of \(1,\)"):
        world.group(0, (0, 1)).all_reduce(torch.ones(1))


def test_who_waits_for_a_letter_that_nobody_writes_is_told():
    world = Lockstep()
    world.start(2, lambda rank: world.group(rank, (0, 1)).receive(torch.ones(1), source=0))
    with pytest.raises(RankError, match=r"rank 0 in receive from 1 of \(1,\).*rank 1 in receive from 0"):
        world.group(0, (0, 1)).receive(torch.ones(1), source=1)


def test_one_who_is_only_slow_is_waited_for():
    world, come = Lockstep(), []

    def late(rank):
        group = world.group(rank, (0, 1))
        while len(world.waiting) < 1:  # the other waits, and is not told anything
            pass
        come.append(rank)
        group.all_reduce(torch.ones(1))

    world.start(2, late)
    assert world.group(0, (0, 1)).all_reduce(torch.ones(1)).item() == 2
    assert come == [1]
    world.end()
    assert not world.failure()
