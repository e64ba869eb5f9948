"""Charts draw what they are given, name both axes, and can be told apart in grey."""

import itertools

import matplotlib

matplotlib.use("Agg")

import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb

from minfer.plots import chart, schedule
from minfer.plots.recording import FREE, Recording, Work
from minfer.plots.roofline import attainable, crowds, roofline

STEPS = {"now": (2.0, 3e9), "then": (40.0, 5e9)}
RUN = Recording(
    work=[[Work(0, 0, 5, "prefill"), Work(1, 1, 1, "decode")], [Work(0, 0, 1, "decode")], [Work(0, 0, 1, "decode")]],
    blocks=[[0, 1, FREE], [0, FREE, FREE], [0, 0, FREE]],
)


def named(axes):
    """What the legend says."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.fixture
def axes():
    (made,) = chart.panels()
    yield made
    pyplot.close("all")


def draw_lines(axes):
    chart.lines(axes, {"a": ([1, 2], [3, 4]), "b": ([1, 2], [5, 7])}, "rows", "time (s)", "found")


def draw_bars(axes):
    chart.bars(axes, {"a": 1.0, "b": 2.5}, "rows", "time (s)", "found")


def draw_ranks(axes):
    chart.horizontal_bars(axes, {"a": 1.0, "b": 2.5}, "rows", "time (s)", "found")


def draw_stacks(axes):
    chart.stacks(axes, {"a": {"p": 1.0, "q": 2.0}, "b": {"p": 3.0, "q": 4.0}}, "rows", "time (s)", "found")


def draw_grid(axes):
    chart.grid(axes, [[0.0, 1.0], [0.5, 0.2]], "rows", "time (s)", "found", "share")


def draw_spans(axes):
    chart.spans(axes, {"host": [(0, 2, "x"), (2, 1, "y")], "device": [(1, 3, "z")]}, "rows", "time (s)", "found")


def draw_points(axes):
    chart.points(axes, {"a": (1, 2), "b": (3, 4)}, "rows", "time (s)", "found")


@pytest.mark.parametrize("draw", [draw_lines, draw_bars, draw_ranks, draw_stacks, draw_grid, draw_spans, draw_points])
def test_both_axes_and_the_finding_are_named(axes, draw):
    draw(axes)
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("rows", "time (s)", "found")


def test_bars_and_stacks_are_as_high_as_the_data(axes):
    draw_stacks(axes)
    tops = sorted(round(bar.get_y() + bar.get_height(), 9) for bar in axes.patches)
    assert tops == [1, 3, 3, 7]
    assert {text.get_text() for text in axes.texts} == {"3", "7"}


def test_lines_differ_by_more_than_their_colour(axes):
    draw_lines(axes)
    first, second = axes.lines[:2]
    assert first.get_linestyle() != second.get_linestyle()
    assert first.get_marker() != second.get_marker()


def test_points_are_named_beside_the_figure_and_differ_by_their_marks(axes):
    draw_points(axes)
    assert named(axes) == ["a", "b"]
    assert len({line.get_marker() for line in axes.lines}) == 2
    assert not axes.texts


def draw_roofline(axes, places):
    roofline(axes, 100e9, 10e9, places, "found")
    return axes.lines[1:]


def draw_places(axes, places):
    chart.points(axes, places, "rows", "time (s)", "found")
    return axes.lines


@pytest.mark.parametrize("draw", [draw_roofline, draw_places])
def test_more_points_than_there_are_markers_can_still_be_told_apart(axes, draw):
    places = {f"series {number}": (2.0**number, 3e9 * 2**number) for number in range(2 * len(chart.MARKERS))}
    marks = [(line.get_marker(), line.get_color()) for line in draw(axes, places)]
    assert len(set(marks)) == len(marks) == len(places)


def test_bars_that_lie_have_the_first_on_top(axes):
    draw_ranks(axes)
    assert [bar.get_width() for bar in axes.patches] == [1.0, 2.5]
    assert axes.yaxis_inverted()


def test_boxes_of_one_kind_have_one_shade_in_all_lanes(axes):
    boxes = [(0, 1, "launch 0"), (1, 1, "launch 1"), (2, 1, "read 0")]
    chart.spans(axes, {"a": boxes, "b": [(0, 1, "read 1")]}, "rows", "time (s)", "found")
    launch, other, read, below = (bar.get_facecolor() for bar in axes.patches)
    assert launch == other != read == below


def test_logarithmic_axes_have_plain_numbers_at_the_ticks_that_are_asked_for(axes):
    draw_lines(axes)
    chart.logarithmic(axes, x=[1, 1024])
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "1,024"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert not len(axes.get_xticks(minor=True))


def test_neighbouring_shades_differ_in_grey():
    grey = [
        sum(part * weight for part, weight in zip(to_rgb(s), (0.299, 0.587, 0.114), strict=True)) for s in chart.SHADES
    ]
    assert all(abs(one - other) > 0.08 for one, other in itertools.pairwise(grey[:5]))


def test_a_request_is_one_stretch_for_each_unbroken_kind_of_work():
    assert schedule.stretches(RUN) == [(0, 0, 0, 0, True), (1, 1, 0, 0, False), (0, 0, 1, 2, False)]
    assert schedule.busy(RUN) == pytest.approx(4 / 6)


def test_a_timeline_has_a_bar_for_each_stretch_and_a_map_a_number_for_each_owner(axes):
    schedule.timeline(axes, RUN, "found")
    assert len(axes.patches) == 3
    (other,) = chart.panels()
    schedule.block_map(other, RUN, "found")
    assert [text.get_text() for text in other.texts] == ["0", "1", "0"]
    assert (other.get_xlabel(), other.get_ylabel()) == ("step", "block of the pool")


def test_the_roof_is_bandwidth_below_the_ridge_and_the_peak_above(axes):
    assert attainable(2, flops=100, bandwidth=10) == 20
    assert attainable(20, flops=100, bandwidth=10) == 100
    roofline(axes, 100e9, 10e9, STEPS, "found")
    xs, ys = axes.lines[0].get_data()
    assert (xs[1], ys[1]) == (10, 100)
    assert [text.get_text() for text in axes.texts] == ["ridge: 10 FLOPs/byte"]
    assert named(axes) == ["now", "then"]


def test_steps_that_lie_together_are_named_together():
    assert crowds({"a": (1.0, 10.0), "b": (1.1, 9.0), "c": (1.1, 20.0), "d": (4.0, 10.0)}) == [["a", "b"], ["c"], ["d"]]
