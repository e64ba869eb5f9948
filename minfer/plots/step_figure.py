"""A step log as a figure: the parts of each step's time, what the steps computed, and how full the pool was."""

from pathlib import Path
from typing import Any

import numpy as np

from minfer.core.errors import MinferError
from minfer.plots.run_figure import check_format

PARTS = {
    "schedule": "#b07aa1",
    "prepare": "#f28e2b",
    "forward": "#4e79a7",
    "sample": "#59a14f",
    "commit": "#e15759",
}


def draw_steps(steps: np.ndarray, path: Path, title: str) -> None:
    """Write the figure to `path`; `steps` are a `StepLog`'s records. Raises `MinferError` as `check_format`."""
    check_format(path)
    if not len(steps):
        raise MinferError("there is nothing to draw: no step was made")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    times, tokens, blocks = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.5, 1.5))
    figure.suptitle(title)
    number = np.arange(len(steps))
    _times(times, number, steps)
    tokens.bar(number, steps["tokens"], 1.0, color="#4e79a7", label="for requests")
    tokens.bar(number, steps["padded"], 1.0, bottom=steps["tokens"], color="#bab0ac", label="padding")
    tokens.set(ylabel="tokens", yscale="symlog")
    tokens.legend(loc="upper right", fontsize=8)
    blocks.step(number, steps["used_blocks"], where="mid", color="#59a14f", label="blocks in use")
    blocks.step(number, steps["running"], where="mid", color="#4e79a7", label="requests running")
    blocks.step(number, steps["waiting"], where="mid", color="#e15759", label="requests waiting")
    blocks.set(xlabel="step", ylabel="after the step", xlim=(-0.5, len(steps) - 0.5), ylim=(0, None))
    blocks.legend(loc="upper left", fontsize=8)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise MinferError(f"cannot draw {path}: {error.strerror}") from error


def _times(axes: Any, number: np.ndarray, steps: np.ndarray) -> None:
    """Bars of parts on one another; steps far longer than most are cut off, and say how long they were."""
    below = np.zeros(len(steps))
    for part, colour in PARTS.items():
        axes.bar(number, 1000 * steps[part], 1.0, bottom=below, color=colour, label=part)
        below = below + 1000 * steps[part]
    most = 1.3 * max(float(np.percentile(below, 95)), 0.5 * float(below.max()) if len(steps) < 20 else 0.0)
    for place in np.flatnonzero(below > most):
        axes.text(place, most, f"{below[place]:.1f}", ha="center", va="bottom", fontsize=7)
    axes.set(ylabel="ms on the host", ylim=(0, most))
    axes.legend(loc="upper right", fontsize=8, ncols=len(PARTS))
    axes.set_title("Parts of each step; where the device is a card, commit has the wait for it", fontsize=10)
