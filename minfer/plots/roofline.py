"""A roofline: what a machine allows at each arithmetic intensity, and where steps are below it.

(Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.)
"""

from collections.abc import Mapping
from typing import Any

from minfer.plots.chart import SHADES, mark, name

NEAR = 1.25  # the ratio up to which two numbers are hardly apart on a logarithmic axis


def attainable(intensity: float, flops: float, bandwidth: float) -> float:
    """FLOP/s that a machine of `flops` FLOP/s and `bandwidth` bytes/s allows at so many FLOPs per byte."""
    return min(flops, intensity * bandwidth)


def crowds(steps: Mapping[str, tuple[float, float]]) -> list[list[str]]:
    """Labels of steps that lie too near each other to be named apart: each near the first of its crowd."""
    made: list[list[str]] = []
    for label, place in steps.items():
        near = (crowd for crowd in made if all(_near(*pair) for pair in zip(place, steps[crowd[0]], strict=True)))
        crowd = next(near, None)
        if crowd is None:
            made.append([label])
        else:
            crowd.append(label)
    return made


def _near(one: float, other: float) -> bool:
    return max(one, other) < NEAR * min(one, other)


def roofline(axes: Any, flops: float, bandwidth: float, steps: Mapping[str, tuple[float, float]], title: str) -> None:
    """`steps`: label -> (FLOPs per byte, FLOP/s reached); both axes are logarithmic. A crowd has one mark."""
    across = [intensity for intensity, _ in steps.values()]
    ridge = flops / bandwidth
    ends = [min(*across, ridge) / 3, ridge, max(*across, ridge) * 3]
    axes.plot(ends, [attainable(at, flops, bandwidth) / 1e9 for at in ends], color=SHADES[0], linewidth=2)
    below = {"xytext": (6, -12), "textcoords": "offset points", "fontsize": 8}
    axes.annotate(f"ridge: {ridge:.2g} FLOPs/byte", (ridge, flops / 1e9), **below)
    for number, labels in enumerate(crowds(steps)):
        places = [steps[label] for label in labels]
        up = [reached / 1e9 for _, reached in places]
        axes.plot([at for at, _ in places], up, **mark(number), linestyle="", markersize=7, label=", ".join(labels))
    axes.set(xscale="log", yscale="log")
    axes.margins(y=0.1)
    axes.legend(frameon=False, fontsize=9, bbox_to_anchor=(1, 1), loc="upper left")
    axes.grid(alpha=0.3, which="both")
    name(axes, "FLOPs per byte that must be read or written", "GFLOP/s", title)
