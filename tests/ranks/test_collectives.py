"""`minfer comm`: its figures are what their definitions say, and every operation is there."""

from dataclasses import replace

import pytest

from minfer.bench.collectives import OPERATIONS, Figure, Overlap, bus_factor
from minfer.bench.step_share import StepShare
from tests.ranks.processes import children


@pytest.mark.parametrize(
    ("operation", "factors"),
    [
        ("AllReduce", (1.0, 4 / 3, 1.5)),
        ("AllReduce in a step", (1.0, 4 / 3, 1.5)),
        ("AllGather", (1 / 2, 2 / 3, 3 / 4)),
        ("ReduceScatter", (1 / 2, 2 / 3, 3 / 4)),
        ("Broadcast", (1.0, 1.0, 1.0)),
        ("Reduce", (1.0, 1.0, 1.0)),
    ],
)
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_factor(operation, factors):
    assert operation in OPERATIONS
    for ranks, factor in zip((2, 3, 4), factors, strict=True):
        assert bus_factor(operation, ranks) == pytest.approx(factor)
        figure = Figure(operation, nbytes=3_000, seconds=1e-3, ranks=ranks)
        assert figure.algorithm_bandwidth == pytest.approx(3e6)
        assert figure.bus_bandwidth == pytest.approx(3e6 * factor)


def test_a_share_is_of_the_whole_step():
    share = StepShare(0.02, communication_seconds=0.005, calls=9, alone_seconds=0.015, latency=0.0004)
    assert share.share == pytest.approx(0.25)
    assert share.operation_seconds == pytest.approx(0.0036)
    assert share.waiting_seconds == pytest.approx(0.0014)
    assert replace(share, latency=0.001).waiting_seconds == 0
    assert share.speed == pytest.approx(0.75)


@pytest.mark.parametrize(("both", "hidden"), [(0.005, 0.0), (0.006, 0.0), (0.003, 1.0), (0.004, 0.5)])
def test_what_is_hidden_is_a_share_of_the_shorter(both, hidden):
    figure = Overlap(nbytes=8, communication_seconds=0.002, compute_seconds=0.003, both_seconds=both)
    assert figure.hidden == pytest.approx(hidden)


def test_comm_shows_all_operations_and_the_share_of_a_step(capsys):
    from minfer.cli import main

    code = main(["comm", "--device", "cpu", "--size", "4096", "--model", "tiny", "--requests", "2"])
    out = capsys.readouterr().out
    assert code == 0
    for operation in OPERATIONS:
        assert f"{operation} " in out
    assert out.count("4,096") == len(OPERATIONS) + 1
    words = " ".join(out.split())
    assert "Compute beside communication: an AllReduce of 4,096 bytes takes" in words
    assert "tiny, a decode step of 2 requests on 2 ranks:" in words
    # header and payload, the embedding, two in each of 5 layers, and the head's gather
    assert "in 14 operations between ranks" in words
    assert "One rank with the threads of all:" in words
    assert not children()


@pytest.mark.parametrize(("args", "said"), [(["--ranks", "1"], "give 2 or more"), (["--size", "4"], "at least 8")])
def test_what_cannot_be_measured_is_refused(args, said, capsys):
    from minfer.cli import main

    assert main(["comm", *args]) == 2
    assert said in capsys.readouterr().err
