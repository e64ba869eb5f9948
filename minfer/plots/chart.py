"""Charts for notebooks: each takes data and axes to draw on, names both axes with their units, and reads in grey.

`panels` makes the axes; what is drawn on them is shown when the cell ends. Shades differ in grey, lines also by their
dashes and markers, areas by their hatching.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

from minfer.core.extras import require

SHADES = ("#17324d", "#c0561a", "#7fa8cc", "#b9d0e4", "#e8eff5", "#777777")
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "x")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "--")
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
MANY = 24  # points of a line beyond which markers would cover it


def panels(count: int = 1, width: float = 9.0, height: float = 3.4, **more: Any) -> list[Any]:
    """So many axes side by side, in inches. `more`: for matplotlib's `subplots`, such as `width_ratios`."""
    require("matplotlib", "plots", "drawing figures")
    from matplotlib import pyplot

    _, axes = pyplot.subplots(1, count, figsize=(width, height), dpi=90, layout="constrained", squeeze=False, **more)
    for one in axes[0]:
        one.spines[["top", "right"]].set_visible(False)
    return list(axes[0])


def name(axes: Any, x: str, y: str, title: str) -> None:
    """What the axes measure, with units, and what there is to see: a finding, not a topic."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, loc="left", fontsize=10, wrap=True)


def lines(axes: Any, series: Mapping[str, tuple[Items[float], Items[float]]], x: str, y: str, title: str) -> None:
    """A line for each (xs, ys), by its label."""
    for number, (label, (xs, ys)) in enumerate(series.items()):
        style = {"color": SHADES[number % 3], "linestyle": DASHES[number], "linewidth": 1.8}
        axes.plot(xs, ys, **style, marker=MARKERS[number] if len(xs) < MANY else None, markersize=5, label=label)
    name(axes, x, y, title)
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=9)


def logarithmic(axes: Any, x: Items[float] = (), y: Items[float] = ()) -> None:
    """Logarithmic axes with these ticks only, in plain numbers; an axis without ticks is left as it is."""
    from matplotlib.ticker import NullLocator

    for scale, axis, ticks in ((axes.set_xscale, axes.xaxis, x), (axes.set_yscale, axes.yaxis, y)):
        if ticks:
            scale("log")
            axis.set_ticks(ticks, [f"{tick:,g}" for tick in ticks])
            axis.set_minor_locator(NullLocator())


def bars(axes: Any, values: Mapping[str, float], x: str, y: str, title: str, form: str = "{:.3g}") -> None:
    """A bar for each label, with its value above it in the form of `str.format`."""
    drawn = axes.bar(list(values), list(values.values()), 0.6, color=SHADES[2], edgecolor=SHADES[0])
    axes.bar_label(
        drawn, [form.format(value) for value in values.values()], padding=2, fontsize=9, zorder=3, bbox=LABEL
    )  # over lines
    axes.margins(y=0.15)
    name(axes, x, y, title)


def horizontal_bars(axes: Any, values: Mapping[str, float], x: str, y: str, title: str, form: str = "{:.3g}") -> None:
    """As `bars`, but horizontal: for labels too long to stand beside each other. The first is on top."""
    drawn = axes.barh(list(values), list(values.values()), 0.6, color=SHADES[2], edgecolor=SHADES[0])
    axes.bar_label(drawn, [form.format(value) for value in values.values()], padding=2, fontsize=9)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    name(axes, x, y, title)


def stacks(axes: Any, columns: Mapping[str, Mapping[str, float]], x: str, y: str, title: str) -> None:
    """A bar for each column, of parts one on another; all columns have parts of the same names."""
    below = dict.fromkeys(columns, 0.0)
    for number, part in enumerate(next(iter(columns.values()))):
        values = [parts[part] for parts in columns.values()]
        shade, hatch = SHADES[number], HATCHES[number]
        axes.bar(
            list(columns),
            values,
            0.6,
            bottom=list(below.values()),
            color=shade,
            hatch=hatch,
            edgecolor="white",
            label=part,
        )
        below = {column: below[column] + value for column, value in zip(columns, values, strict=True)}
    for place, total in enumerate(below.values()):
        text = f"{total:,.0f}" if total >= 100 else f"{total:.3g}"
        axes.annotate(text, (place, total), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    axes.set_ylim(0, 1.12 * max(below.values()))
    axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")
    name(axes, x, y, title)


def grid(axes: Any, values: Any, x: str, y: str, title: str, unit: str) -> None:
    """A matrix as shades of grey, dark for large; `unit` is that of the values. NaN stays white."""
    image = axes.imshow(values, cmap="Greys", aspect="auto", interpolation="nearest", vmin=0)
    axes.figure.colorbar(image, ax=axes, label=unit, shrink=0.9)
    name(axes, x, y, title)


def spans(axes: Any, lanes: Mapping[str, Items[tuple[float, float, str]]], x: str, y: str, title: str) -> None:
    """A row for each lane, of boxes (start, length, text); the first lane is on top.

    Boxes whose texts begin with the same word have the same shade.
    """
    kinds = list(dict.fromkeys(_kind(text) for boxes in lanes.values() for _, _, text in boxes))
    for row, boxes in enumerate(lanes.values()):
        for start, length, text in boxes:
            shade = SHADES[4 - kinds.index(_kind(text)) % 3]
            axes.barh(row, length, 0.7, left=start, color=shade, edgecolor=SHADES[0], linewidth=0.8)
            axes.text(start + length / 2, row, text, ha="center", va="center", fontsize=8, clip_on=True)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.invert_yaxis()
    name(axes, x, y, title)


def _kind(text: str) -> str:
    """The first word, if there is one."""
    return next(iter(text.split()), "")


def mark(number: int) -> dict[str, str]:
    """Marker and colour of point `number`: where the markers have all been had, they come again in another shade."""
    return {"marker": MARKERS[number % len(MARKERS)], "color": SHADES[number // len(MARKERS) % 3]}


def points(axes: Any, places: Mapping[str, tuple[float, float]], x: str, y: str, title: str) -> None:
    """A point for each label, told apart by its mark: names beside points that lie together would cover each other."""
    for number, (label, (across, up)) in enumerate(places.items()):
        axes.plot([across], [up], **mark(number), linestyle="", markersize=7, label=label)
    axes.margins(x=0.15, y=0.15)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")
    name(axes, x, y, title)
