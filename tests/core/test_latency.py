"""Latencies of a row made by hand; what a percentile is where there are few values; memory and cards measured."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from minfer.core.device import CPU
from minfer.core.errors import MinferError
from minfer.core.measures.bandwidth import NBYTES, copy_bandwidth
from minfer.core.measures.card_usage import CardUsage
from minfer.core.measures.latency import e2e, gaps, percentile, tpot, ttft
from minfer.core.measures.trace import MEMORY, Trace, peak_bytes

ARRIVED, TOKENS = 10.0, [12.5, 13.0, 13.25, 15.5]


def test_a_request_by_hand():
    assert ttft(ARRIVED, TOKENS) == 2.5
    assert tpot(TOKENS) == 1.0  # 3 s after the first, for 3 tokens
    assert gaps(TOKENS) == [0.5, 0.25, 2.25]
    assert e2e(ARRIVED, TOKENS) == 5.5
    assert ttft(ARRIVED, TOKENS) + sum(gaps(TOKENS)) == e2e(ARRIVED, TOKENS)


def test_one_token_has_a_ttft_and_nothing_between():
    assert (ttft(1.0, [4.0]), tpot([4.0]), gaps([4.0]), e2e(1.0, [4.0])) == (3.0, None, [], 3.0)
    assert (tpot([]), gaps([])) == (None, [])


def test_percentiles_interpolate_as_numpy_does_where_there_are_values_beyond():
    hundred = [float(value) for value in range(1, 101)]
    assert percentile(hundred, 50) == 50.5
    assert percentile(hundred, 95) == np.percentile(hundred, 95)
    assert percentile(hundred, 99) == pytest.approx(99.01)
    assert percentile(hundred[:99], 99) == 99.0
    assert percentile(hundred[:19], 95) == 19.0
    assert percentile(hundred[:20], 95) == np.percentile(hundred[:20], 95) < 20.0


@pytest.mark.parametrize(("values", "median"), [([3.0], 3.0), ([4.0, 1.0], 2.5), ([9.0, 1.0, 2.0], 2.0)])
def test_a_median_is_a_median(values, median):
    assert percentile(values, 50) == median


def test_without_values_there_is_no_percentile():
    assert math.isnan(percentile([], 50))


def test_a_trace_knows_the_most_that_was_held(tmp_path):
    def work():
        first = torch.ones(1000)
        second = torch.ones(3000)
        del first
        return second + torch.ones(2000).sum()

    trace = Trace.of(work, memory=True)
    records = trace.records
    assert any(record.name() == MEMORY for record in records)
    # 3000 · 4 and 2000 · 4 bytes are held together with the sum's result; the result of + comes after the 2000
    most = peak_bytes(records, "cpu")
    assert 4 * (3000 + 3000) <= most < 4 * (3000 + 3000 + 64)
    assert peak_bytes(records, "cuda") == 0
    with pytest.raises(MinferError, match="folder that exists"):
        trace.write(tmp_path / "nowhere" / "trace.json")


def test_a_trace_writes_nothing_to_the_terminal(capfd):
    Trace.of(lambda: torch.ones(3))
    assert capfd.readouterr() == ("", "")


class Slow(CPU):
    """A host whose copies take half a second."""

    def __init__(self):
        self.times = iter(range(100))

    def clock(self):
        return next(self.times) / 2


def test_bandwidth_counts_what_is_read_and_what_is_written():
    assert copy_bandwidth(Slow()) == 2 * NBYTES / 0.5


class Card(CPU):
    uuid = "GPU-1234"


def test_a_cards_counters_are_the_drivers(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    readings = "90, 40\\n[N/A], 1\\n80, 20\\n7"
    program.write_text(f'#!/bin/sh\necho "$@" > asked\nprintf "{readings}"\ntouch said\nexec sleep 60 >&-\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with CardUsage(Card()) as usage:
        while not Path("said").exists():
            time.sleep(0.01)
    assert "-i GPU-1234" in Path("asked").read_text()
    assert (usage.busy, usage.memory_busy, usage.problem) == (85.0, 30.0, "")


def test_without_a_card_or_its_driver_the_reason_is_said(tmp_path, monkeypatch):
    with CardUsage(CPU()) as usage:
        pass
    assert (usage.busy, usage.problem) == (None, "cpu has no such counters")
    monkeypatch.setenv("PATH", str(tmp_path))
    with CardUsage(Card()) as usage:
        pass
    assert usage.busy is None
    assert usage.problem.startswith("nvidia-smi cannot be run")
