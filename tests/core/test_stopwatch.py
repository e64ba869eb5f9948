"""Stopwatches: on a host by the clock; on a card by events, which nobody waits for until their time is wanted."""

import time

import pytest
import torch

from minfer.core.device import CPU, Device, EventStopwatch
from minfer.course.machines.clocks import ClockedDevice


def test_a_hosts_stopwatch_reads_the_devices_clock():
    device = ClockedDevice()
    device.wait(5.0)
    for seconds in (3.0, 2.0):  # it is used again
        watch = CPU.stopwatch(device)
        watch.start()
        device.wait(seconds)
        watch.stop()
        assert (watch.done(), watch.seconds()) == (True, seconds)


def test_work_beside_the_host_is_timed_where_it_is_done():
    device = ClockedDevice(lazy=True)
    first, second = device.stopwatch(), device.stopwatch()
    first.start()
    device.queue(3.0)
    first.stop()
    second.start()
    device.queue(2.0)
    second.stop()
    assert (device.now, first.done()) == (0.0, False)
    device.wait(3.5)
    assert (first.done(), second.done()) == (True, False)
    assert (first.seconds(), device.now) == (3.0, 3.5)
    assert (second.seconds(), device.now) == (2.0, 5.0)


class Event:
    """A stand-in that notes what is asked of it; the n-th one recorded is reached after n ms."""

    log: list = []  # noqa: RUF012

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self):
        self.log.append("record")
        self.at = self.log.count("record")

    def query(self):
        self.log.append("query")
        return True

    def synchronize(self):
        self.log.append("wait")

    def elapsed_time(self, later):
        return 1.0 * (later.at - self.at)


def test_a_card_is_asked_for_events_and_waited_for_only_at_the_end(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.log.clear()
    watch = EventStopwatch()
    watch.start()
    watch.stop()
    assert watch.done()
    assert Event.log == ["record", "record", "query"]
    assert watch.seconds() == 0.001
    assert Event.log[-1] == "wait"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="times work of an NVIDIA card: there is none")
def test_a_card_tells_how_long_its_work_took():
    device = Device.get("cuda")
    big = torch.randn(8192, 8192, device="cuda")
    watch = device.stopwatch()
    device.synchronize()
    started = time.perf_counter()
    watch.start()
    for _ in range(20):
        big = torch.nn.functional.normalize(big @ big)
    watch.stop()
    launched = time.perf_counter() - started
    seconds = watch.seconds()
    whole = time.perf_counter() - started
    assert launched < seconds <= whole
    assert device.taken_memory() >= big.nbytes
    assert device.uuid.startswith("GPU-")
