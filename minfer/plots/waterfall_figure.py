"""A waterfall as a figure: from the time of one row to that of another, bar by bar. Needs the extra `plots`."""

from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError
from minfer.cost.waterfall import NAMES, Waterfall
from minfer.plots.run_figure import check_format

WHOLE, LESS, MORE, UNKNOWN = "#4e79a7", "#59a14f", "#e15759", "#bab0ac"


def draw_waterfall(made: Waterfall, path: Path, title: str) -> None:
    """Write the figure to `path`; its ending says the format. Raises `MinferError` as `check_format`."""
    check_format(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    steps = [(NAMES[name], change) for name, change in made.parts.items() if change]
    steps.append(("unexplained", made.unexplained))
    _bar(axes, 0, 0.0, made.first, WHOLE, f"{made.first:.2f}")
    level = made.first
    for place, (name, change) in enumerate(steps, start=1):
        colour = UNKNOWN if name == "unexplained" else LESS if change < 0 else MORE
        axes.plot([place - 1.4, place + 0.4], [level, level], color="black", linewidth=0.6)
        _bar(axes, place, level, level + change, colour, f"{change:+.2f}")
        level += change
    _bar(axes, len(steps) + 1, 0.0, made.second, WHOLE, f"{made.second:.2f}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(steps) + 2), ["before", *(name for name, _ in steps), "after"], rotation=15)
    axes.set_ylabel("ms per output token")
    axes.set_ylim(top=axes.dataLim.ymax + 0.08 * axes.dataLim.height)
    axes.set_title(f"{title}; green: less time, red: more", fontsize=11)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise MinferError(f"cannot draw {path}: {error.strerror}") from error


def _bar(axes: Any, place: int, start: float, end: float, colour: str, label: str) -> None:
    axes.bar(place, end - start, 0.8, bottom=start, color=colour)
    axes.annotate(label, (place, max(start, end)), (0, 3), textcoords="offset points", ha="center", fontsize=9)
