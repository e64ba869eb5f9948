"""Every figure by its name."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from scripts.lesson_figures import formulas, hooks, machines, runs
from scripts.lesson_figures.style import SETTINGS, save

FIGURES: dict[str, Callable[[], Figure]] = {
    "hooks": hooks.hooks,
    "phase1": runs.loop,
    "phase2": formulas.what_fits,
    "phase3": runs.tokens_fed,
    "phase4": runs.padding,
    "phase5": runs.continuous,
    "phase6": formulas.levels,
    "phase7": machines.operators,
    "phase8": machines.graphs,
    "phase9": machines.streams,
    "phase10": machines.ranks,
    "phase11": machines.latencies,
}


def draw(name: str, folder: Path) -> Path:
    """Draw one into `folder` and return its file."""
    path = folder / f"{name}.svg"
    with matplotlib.rc_context(SETTINGS):
        save(FIGURES[name](), path)
    return path
