"""How a CUDA card is asked for streams: a stand-in for `torch.cuda` notes what is called, and in which order."""

from contextlib import contextmanager

import pytest
import torch

from minfer.core.device import CPU, Device


@pytest.fixture
def log(monkeypatch):
    """What is asked of the card."""
    log, current = [], ["main"]

    class Stream:
        def __init__(self, device=None, name="side"):
            self.name = name

        def wait_event(self, event):
            log.append((self.name, "waits for", event.at))

    class Event:
        def record(self, stream):
            self.at = f"event on {stream.name}"
            log.append(self.at)

        def synchronize(self):
            log.append(("host waits for", self.at))

    @contextmanager
    def on(stream):
        current.append(stream.name)
        yield
        current.pop()

    stand_ins = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "Stream": Stream,
        "Event": Event,
        "stream": on,
        "current_stream": lambda device: Stream(name=current[-1]),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return log


def test_an_event_stands_between_two_streams_and_the_host_waits_for_no_more(log):
    device = Device.get("cuda")
    side = device.stream()
    side.follow(device.current_stream().moment())
    with side:
        inside = device.current_stream().stream.name
    side.moment().wait()
    assert inside == "side"
    assert device.current_stream().stream.name == "main"
    assert log == [
        "event on main",
        ("side", "waits for", "event on main"),
        "event on side",
        ("host waits for", "event on side"),
    ]


def test_pinned_memory_is_asked_for_as_such(log, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "empty", lambda shape, **how: asked.append((shape, how)))
    Device.get("cuda").pinned((3,), torch.int64)
    assert asked == [((3,), {"dtype": torch.int64, "pin_memory": True})]


def test_on_a_cpu_streams_are_one_and_pinned_memory_is_memory():
    device = CPU()
    page = device.pinned((2,), torch.int64)
    side = device.stream()
    with side:
        page.copy_(torch.tensor([3, 4]), non_blocking=True)
    side.follow(device.current_stream().moment())
    side.moment().wait()
    assert page.tolist() == [3, 4]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies beside a card's work: there is none")
def test_a_card_copies_beside_its_work():
    device = Device.get("cuda")
    page = device.pinned((4,), torch.int64)
    assert page.is_pinned()
    side = device.stream()
    big = torch.rand(4096, 4096, device="cuda")
    ids = torch.arange(4, device="cuda") * 3
    side.follow(device.current_stream().moment())
    for _ in range(200):
        big = big @ big / 4096
    later = device.current_stream().moment()
    with side:
        page.copy_(ids, non_blocking=True)
    side.moment().wait()
    assert page.tolist() == [0, 3, 6, 9]
    assert not later.event.query()  # the card still computes
    later.wait()
