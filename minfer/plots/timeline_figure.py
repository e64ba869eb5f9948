"""A timeline as a figure: host, model and copies in lanes, one engine above another on one scale. Needs `plots`."""

from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError
from minfer.course.machines.timeline import LANES, Span
from minfer.plots.run_figure import check_format

NARROW = 0.01  # of the whole time: a bar on which no number can be read
COLOURS = {"launch": "#f28e2b", "commit": "#e15759", "forward": "#4e79a7", "ids": "#59a14f"}
MEANS = {
    "launch": "host: schedule, prepare, launch",
    "commit": "host: read, text, stop rules",
    "forward": "model: a step's forward and draw",
    "ids": "copy of its ids (widened)",
}


def draw_timelines(timelines: dict[str, list[Span]], path: Path, title: str) -> None:
    """Write the figure to `path`, one panel per name. Raises `MinferError` as `check_format`."""
    check_format(path)
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 0.9 + 2.1 * len(timelines)), layout="constrained")
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, spans) in zip(panels, timelines.items(), strict=True):
        _lanes(axes, spans)
        axes.set_title(name, fontsize=10, loc="left")
    panels[-1].set(xlabel="ms", xlim=(0, None))
    figure.legend(
        handles=[Patch(color=COLOURS[kind], label=MEANS[kind]) for kind in COLOURS],
        loc="outside lower center",
        ncols=len(COLOURS),
        fontsize=8,
    )
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise MinferError(f"cannot draw {path}: {error.strerror}") from error


def _lanes(axes: Any, spans: list[Span]) -> None:
    """A bar for each span; a step's bars bear its number, where there is room."""
    seen: dict[str, int] = {}
    room = 1000 * max(span.end for span in spans) * NARROW
    for span in spans:
        number = seen[span.name] = seen.get(span.name, -1) + 1
        lane, start, width = LANES.index(span.lane), 1000 * span.start, 1000 * (span.end - span.start)
        axes.barh(lane, width, left=start, height=0.7, color=COLOURS[span.name], edgecolor="white", linewidth=0.8)
        if width > room:
            axes.text(start + width / 2, lane, str(number), ha="center", va="center", fontsize=7, color="white")
    axes.set_yticks(range(len(LANES)), LANES, fontsize=8)
    axes.set_ylim(len(LANES) - 0.5, -0.5)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
