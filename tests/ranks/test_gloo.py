"""Ranks over Gloo: results are right for small messages and large; and nothing keeps a rank from its core."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minfer.core.errors import OptionsError
from minfer.phase10 import Engine
from minfer.phase10.cores import CORES, OwnShare, share
from minfer.phase10.gloo_group import SMALL, GlooGroup, gloo
from minfer.phase10.meeting import LOCAL


class Unpicklable(str):
    """A device's name that is a live object."""

    def __reduce__(self):
        raise TypeError("it stays here")


PATIENCE = 100.0  # seconds: only what hangs takes so long
ONLY_LINUX = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux says where a thread runs")


def on_all(size, work):
    """What `work` returns on each of so many ranks, which are threads here."""
    store = dist.HashStore()

    def run(rank):
        group = GlooGroup(gloo(store, "test", rank, size, LOCAL, PATIENCE), PATIENCE)
        done = work(group)
        group.all_reduce(torch.zeros(1))  # nobody leaves while another still reads
        return done

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("numbers", [5, SMALL // 8 + 1], ids=["small", "large"])
def test_sums_parts_and_broadcasts_are_those_of_all_ranks(size, numbers):
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(size, numbers, 1, dtype=torch.float64, generator=generator)

    def work(group):
        own = lambda: given[group.rank].clone()  # noqa: E731
        return group.all_reduce(own()), group.all_gather(own()), group.broadcast(own(), source=1)

    for reduced, gathered, spread in (results := on_all(size, work)):
        assert torch.equal(reduced, results[0][0]), "ranks have different sums"
        assert (reduced - given.sum(0)).abs().max() < 1e-12
        assert torch.equal(gathered, given)
        assert torch.equal(spread, given[1])


def test_cores_are_shared_out_whole_if_there_are_enough():
    assert [share((0, 1, 5, 6, 7), rank, 2) for rank in (0, 1)] == [(0, 1), (5, 6, 7)]
    assert [share((3,), rank, 2) for rank in (0, 1)] == [(3,), (3,)]


@pytest.fixture
def eight_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


def test_engines_that_end_in_any_order_leave_the_threads_that_were_there(eight_threads):
    first, second = OwnShare(2), OwnShare(4)
    assert (first.threads, second.threads, torch.get_num_threads()) == (4, 2, 2)
    for one in (first, second, second):
        one.give_back()
    assert torch.get_num_threads() == 8


def test_an_engine_that_cannot_be_started_takes_no_thread_and_no_core(lab, eight_threads):
    where = [os.sched_getaffinity(0)] if hasattr(os, "sched_getaffinity") else []
    folder = str(lab.model("llama").save(lab.new_folder()))
    with pytest.raises(OptionsError, match="cannot be given to another process"):
        Engine.load(folder, device=Unpicklable("cpu"), tensor_parallel=2)
    assert torch.get_num_threads() == 8
    assert ([os.sched_getaffinity(0)] if where else []) == where


def name_of(task):
    """A thread's name; "" if it has just ended."""
    try:
        return (task / "comm").read_text()
    except OSError:
        return ""


@ONLY_LINUX
def test_each_rank_has_cores_of_its_own_and_readers_that_make_way(lab):
    engine = lab.load(Engine, lab.model("llama").save(lab.new_folder()), tensor_parallel=2, graph_batch=0)
    ranks = [os.getpid(), *(process.popen.pid for process in engine.ranks.others.all)]
    assert [os.sched_getaffinity(pid) for pid in ranks] == [set(share(CORES, rank, 2)) for rank in (0, 1)]
    for pid in ranks:
        readers = [task for task in Path(f"/proc/{pid}/task").iterdir() if "gloo_tcp" in name_of(task)]
        assert readers
        assert {os.sched_getscheduler(int(task.name)) for task in readers} == {os.SCHED_BATCH}
    engine.close()
    assert os.sched_getaffinity(0) == set(CORES)
