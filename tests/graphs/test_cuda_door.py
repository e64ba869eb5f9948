"""How a CUDA card is asked for a graph: a stand-in for `torch.cuda` notes what is called, and in which order."""

from contextlib import contextmanager

import pytest
import torch

from minfer.core.device import Device


class Card:
    """What `torch.cuda` is asked, in order; `stream` is the one that is current."""

    def __init__(self):
        self.log, self.stream, self.recording, self.streams = [], "main", None, 0
        card = self

        class Stream:
            def __init__(self, device=None):
                card.streams += 1
                self.name = f"side{card.streams}"

            def wait_stream(self, other):
                card.log.append(("wait", self.name, other.name))

        class CUDAGraph:
            made = 0

            def __init__(self):
                CUDAGraph.made += 1
                self.name = f"graph{CUDAGraph.made}"

            def pool(self):
                return f"pool of {self.name}"

            def replay(self):
                card.log.append(("replay", self.name, card.stream))

        self.Stream, self.CUDAGraph = Stream, CUDAGraph
        self.main = Stream()
        self.main.name = "main"

    @contextmanager
    def on(self, stream):
        before, self.stream = self.stream, stream.name
        yield
        self.stream = before

    @contextmanager
    def graph(self, captured, pool, stream, capture_error_mode):
        with self.on(stream):
            self.recording = captured.name
            self.log.append(("record", captured.name, pool, capture_error_mode))
            yield
            self.recording = None

    @contextmanager
    def device(self, device):
        self.log.append(("device", str(device)))
        yield


@pytest.fixture
def card(monkeypatch):
    card = Card()
    stand_ins = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "memory_reserved": lambda device: {"cuda:1": 11}[str(device)],
        "Stream": card.Stream,
        "CUDAGraph": card.CUDAGraph,
        "current_stream": lambda *device: card.main,
        "stream": card.on,
        "graph": card.graph,
        "device": card.device,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return card


def test_warm_ups_come_first_on_the_stream_that_records(card):
    device = Device.get("cuda:1")
    device.graph(lambda: card.log.append(("work", card.stream, card.recording)))
    side = device.capture_stream.name
    assert card.log == [
        ("device", "cuda:1"),
        ("wait", side, "main"),
        ("work", side, None),
        ("work", side, None),
        ("record", "graph1", None, "thread_local"),
        ("work", side, "graph1"),
        ("wait", "main", side),
    ]


def test_graphs_beside_one_another_share_its_pool_and_the_stream(card):
    device = Device.get("cuda:1")
    first = device.graph(lambda: None)
    streams = card.streams
    device.graph(lambda: None, beside=first)
    assert ("record", "graph2", "pool of graph1", "thread_local") in card.log
    assert card.streams == streams


def test_a_replay_is_one_launch_on_the_current_stream(card):
    device = Device.get("cuda:1")
    done = []
    graph = device.graph(lambda: done.append(1))
    assert len(done) == 3
    card.log.clear()
    graph.replay()
    assert (card.log, len(done)) == ([("replay", "graph1", "main")], 3)


def test_what_is_reserved_is_what_torch_has_taken_of_the_card(card):
    assert Device.get("cuda:1").reserved_memory() == 11
