"""The simulated card: a graph that it has recorded does what a card's would, and shows what that does not forgive."""

import pytest
import torch

from minfer.core.device import CPU, Device
from minfer.course.machines.simulated import SimulatedDevice


@pytest.fixture
def device():
    return SimulatedDevice()


def test_it_passes_for_a_device(device):
    assert Device.get(device) is device
    assert device.torch_device.type == "cpu"
    assert SimulatedDevice(free=7).free_memory() == 7
    assert SimulatedDevice().free_memory() > 2**28


def test_a_replay_does_the_operations_again_on_what_the_buffers_hold(device):
    x, out = torch.zeros(3, 4), torch.zeros(4)
    weight = torch.arange(4.0)

    def work():
        rows = x.view(4, 3).t().flatten(0).reshape(3, 4) + 1  # views, a copy, an expansion
        out.copy_((rows * weight.expand(3, 4)).sum(0))

    graph = device.graph(work)
    for seed in range(3):
        x.copy_(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        got = out.clone()
        work()
        assert torch.equal(got, out)
    assert (device.captures, device.replays) == (1, 3)


def test_several_results_of_one_operation_are_kept(device):
    x, out = torch.zeros(2, 6), torch.zeros(2, 2)

    def work():
        values, places = x.topk(2)
        out.copy_(values + places)

    graph = device.graph(work)
    x.copy_(torch.tensor([[0.0, 5, 1, 4, 2, 3], [9, 0, 0, 8, 0, 0]]))
    graph.replay()
    assert out.tolist() == [[5 + 1, 4 + 3], [9 + 0, 8 + 3]]


def test_a_compiled_region_is_recorded_and_watched_as_it_was_written(device):
    x, out = torch.zeros(3), torch.zeros(3)
    region = torch.compile(lambda x: (x * 2).exp(), backend="eager", fullgraph=True)
    region(x)
    graph = device.graph(lambda: out.copy_(region(x)))
    x.fill_(1)
    graph.replay()
    assert out.tolist() == pytest.approx([7.389056] * 3)
    with device.watching():
        got = region(x)
    device.synchronize()
    assert torch.equal(got, out)


def test_what_python_rebinds_is_not_seen(device):
    held = {"x": torch.ones(2)}
    out = torch.zeros(2)
    graph = device.graph(lambda: out.copy_(held["x"] * 2))
    old, held["x"] = held["x"], torch.full((2,), 7.0)
    old.fill_(3)
    graph.replay()
    assert out.tolist() == [6, 6]


def test_a_buffer_that_is_gone_fails_and_is_named(device):
    held = {"x": torch.ones(5)}
    out = torch.zeros(5)
    graph = device.graph(lambda: out.copy_(held["x"] * 2))
    held["x"] = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"^a graph reads freed memory: the torch.float32 tensor of shape \(5,\)"):
        graph.replay()


def test_what_another_graph_has_made_is_overwritten_by_a_replay(device):
    made = []
    x = torch.ones(2)
    first = device.graph(lambda: made.append(x + 1))
    second = device.graph(lambda: made.append(x.long() + 1))
    floats, integers = made[1], made[3]  # those of the warm-ups apart
    first.replay()
    assert floats.tolist() == [2, 2]
    second.replay()
    assert floats.isnan().all()
    assert integers.tolist() == [2, 2]
    first.replay()
    assert integers.tolist() == [torch.iinfo(torch.int64).max] * 2


READING = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "__bool__": lambda x: 1 if x.sum() > 0 else 0,
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("name", READING)
def test_the_host_reads_nothing_while_it_is_recorded(device, name):
    with pytest.raises(RuntimeError, match=f"^{name} reads a value on the host while a graph is recorded"):
        device.graph(lambda: READING[name](torch.ones(3)))


def test_a_tensor_of_the_host_in_the_work_is_gone_at_the_replay(device):
    out = torch.zeros(2)
    graph = device.graph(lambda: out.copy_(torch.tensor([1.0, 2.0])))
    with pytest.raises(RuntimeError, match="freed memory"):
        graph.replay()


def test_graphs_are_counted_as_long_as_they_are_held(device):
    graphs = [device.graph(lambda: None) for _ in range(3)]
    assert len(device.graphs) == 3
    del graphs[1:]
    assert len(device.graphs) == 1


def test_on_a_cpu_a_graph_does_the_work_again_and_nothing_before():
    done = []
    graph = CPU().graph(lambda: done.append(1))
    assert done == []
    graph.replay()
    graph.replay()
    assert done == [1, 1]
    assert CPU().reserved_memory() == 0
