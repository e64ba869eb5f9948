"""The timeline: an engine's order of work on a clock that is set; and its picture."""

import pytest

from minfer.bench.timeline import StepCosts, idle_share, sayer, seconds, simulated
from minfer.core.errors import MinferError
from minfer.course.machines.timeline import COPIES, HOST, MODEL
from minfer.plots.timeline_figure import draw_timelines

COSTS = StepCosts(launch=1.0, forward=5.0, commit=1.0)


@pytest.fixture
def timelines(lab):
    return {phase: simulated(phase, sayer(lab.config()), COSTS, tokens=3) for phase in (8, 9)}


def test_one_after_another_each_step_costs_host_and_device(timelines):
    assert seconds(timelines[8]) == pytest.approx(3 * 7)
    assert idle_share(timelines[8]) == pytest.approx(4 / 19)  # two gaps of 2 between three forwards
    assert [span for span in timelines[8] if span.lane == COPIES] == []


def test_overlapped_the_device_is_never_idle(timelines):
    copy = 0.25
    assert seconds(timelines[9]) == pytest.approx(1 + 3 * 5 + copy + 1)
    assert idle_share(timelines[9]) == pytest.approx(0)


def test_a_step_is_launched_before_the_last_ones_tokens_are_read(timelines):
    host = [(span.name, span.start) for span in timelines[9] if span.lane == HOST]
    assert [name for name, _ in host] == ["launch", "launch", "commit", "launch", "commit", "commit"]
    reads = [start for name, start in host if name == "commit"]
    forwards = [span.end for span in timelines[9] if span.lane == MODEL]
    assert all(read >= end for read, end in zip(reads, forwards, strict=True))


def test_with_a_slow_host_the_host_is_all_that_counts(lab):
    slow = StepCosts(launch=4.0, forward=2.0, commit=2.0)
    spans = simulated(9, sayer(lab.config()), slow, tokens=6)
    assert seconds(spans) == pytest.approx(6 * 6, abs=4)
    assert idle_share(spans) > 0.5


def test_it_is_drawn(timelines, tmp_path):
    path = tmp_path / "timeline.png"
    draw_timelines({f"phase {phase}": spans for phase, spans in timelines.items()}, path, "three steps")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(MinferError, match=r"^cannot draw timeline\.txt: end it in"):
        draw_timelines({}, tmp_path / "timeline.txt", "")
