"""A roofline: what a machine allows at each arithmetic intensity, and where steps are below it.

(Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.)
"""

from collections.abc import Mapping
from typing import Any

from minfer.plots.chart import MARKERS, SHADES, name


def attainable(intensity: float, flops: float, bandwidth: float) -> float:
    """FLOP/s that a machine of `flops` FLOP/s and `bandwidth` bytes/s allows at so many FLOPs per byte."""
    return min(flops, intensity * bandwidth)


def roofline(axes: Any, flops: float, bandwidth: float, steps: Mapping[str, tuple[float, float]], title: str) -> None:
    """`steps`: label -> (FLOPs per byte, FLOP/s reached); both axes are logarithmic."""
    across = [intensity for intensity, _ in steps.values()]
    ridge = flops / bandwidth
    ends = [min(*across, ridge) / 3, ridge, max(*across, ridge) * 6]
    axes.plot(ends, [attainable(at, flops, bandwidth) / 1e9 for at in ends], color=SHADES[0], linewidth=2)
    axes.annotate(
        f"ridge: {ridge:.3g} FLOPs/byte", (ridge, flops / 1e9), (4, 5), textcoords="offset points", fontsize=8
    )
    for number, (label, (intensity, reached)) in enumerate(steps.items()):
        axes.plot([intensity], [reached / 1e9], MARKERS[number % len(MARKERS)], color=SHADES[1], markersize=6)
        axes.annotate(label, (intensity, reached / 1e9), (7, -3), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.3, which="both")
    name(axes, "FLOPs per byte that must be read or written", "GFLOP/s", title)
