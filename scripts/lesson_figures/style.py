"""Style: shades that differ in grey too, and files that are the same each time they are made."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DARK, MID, LIGHT, PALE, WARM = "#17324d", "#5b8db8", "#a9c4dc", "#e3ebf2", "#d9772b"
HATCH = "////"
FOLDER = Path(__file__).parents[2] / "phases" / "figures"
SETTINGS = {
    "svg.hashsalt": "minfer",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
}


def figure(width: float = 9, height: float = 3.4) -> Figure:
    """An empty figure, in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def save(made: Figure, path: Path) -> None:
    """Write `made` as SVG, without anything that differs from one run to the next."""
    with matplotlib.rc_context(SETTINGS):
        made.savefig(path, metadata={"Date": None}, facecolor="white")


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str = PALE, **more: Any
) -> None:
    """A rectangle with text in its middle."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=DARK, linewidth=0.8, **more))
    shade = "white" if colour == DARK else "black"
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=shade, fontsize=8)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], both: bool = False, **more: Any) -> None:
    """An arrow; `both`: with two heads, to show a length."""
    shape = {"arrowstyle": "<->" if both else "->", "color": DARK, "shrinkA": 0, "shrinkB": 0, **more}
    axes.annotate("", xy=end, xytext=start, arrowprops=shape)
