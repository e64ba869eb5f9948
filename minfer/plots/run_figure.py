"""A recording as a figure: rows against steps on top, blocks against steps below. Needs the extra `plots`."""

from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError
from minfer.core.extras import require
from minfer.plots.recording import CACHED, FREE, SHARED, Recording

FORMATS = (".png", ".svg", ".pdf")
_LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def check_format(path: Path) -> None:
    """Raise `MinferError` unless `path` has an ending that can be drawn and a folder that exists."""
    if path.suffix.lower() not in FORMATS or path.is_dir():
        raise MinferError(f"cannot draw {path.name}: end it in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise MinferError(f"cannot draw {path}: there is no folder {path.parent}")
    require("matplotlib", "plots", "drawing figures")


def draw(recording: Recording, path: Path, title: str) -> None:
    """Write the figure to `path`; its ending says the format. Raises `MinferError` as `check_format`."""
    check_format(path)
    if not any(recording.work):
        raise MinferError("there is nothing to draw: no request needed a step")
    from matplotlib.figure import Figure

    parts = 2 if recording.blocks else 1
    figure = Figure(figsize=(11, 4.2 * parts), layout="constrained")
    axes = figure.subplots(parts, 1, squeeze=False)[:, 0]
    figure.suptitle(title)
    _rows(axes[0], recording)
    if recording.blocks:
        _blocks(axes[1], recording)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise MinferError(f"cannot draw {path}: {error.strerror}") from error


def _rows(axes: Any, recording: Recording) -> None:
    """A bar per request and stretch of steps; hatched while its prompt is computed."""
    for step, work in enumerate(recording.work):
        for one in work:
            prefill = one.kind != "decode"
            axes.broken_barh(
                [(step, 1)],
                (one.row - 0.45, 0.9),
                facecolor=_colour(one.request),
                hatch="////" if prefill else None,
                edgecolor="black" if prefill else _colour(one.request),
                linewidth=0.2,
            )
    seen: set[int] = set()
    for step, work in enumerate(recording.work):
        for one in work:
            if one.request not in seen:
                seen.add(one.request)
                axes.text(step + 0.15, one.row, str(one.request), va="center", fontsize=8, bbox=_LABEL)
    rows = 1 + max((one.row for work in recording.work for one in work), default=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="step", ylabel="row of the batch", xlim=(0, len(recording.work)), ylim=(rows - 0.5, -0.5))
    busy = sum(map(len, recording.work)) / (rows * len(recording.work))
    title = f"Which request held which row ({busy:.0%} of the rows busy); hatched: its prompt was computed"
    axes.set_title(title, fontsize=10)


def _blocks(axes: Any, recording: Recording) -> None:
    from matplotlib.colors import to_rgb

    plain = {FREE: "#ffffff", CACHED: "#dddddd", SHARED: "#222222"}
    highest = 1 + max(
        (block for owners in recording.blocks for block, owner in enumerate(owners) if owner != FREE), default=0
    )
    image = [
        [to_rgb(plain.get(owners[block]) or _colour(owners[block])) for owners in recording.blocks]
        for block in range(highest)
    ]
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, len(recording.blocks), highest, 0))
    axes.set(xlabel="step", ylabel="block of the KV cache")
    used = sum(owner not in (FREE, CACHED) for owners in recording.blocks for owner in owners)
    share = used / (len(recording.blocks) * len(recording.blocks[0]))
    axes.set_title(
        f"Whose each block was; black: shared, grey: free with a known prefix, white: free "
        f"({share:.0%} of the pool in use on average)",
        fontsize=10,
    )


def _colour(request: int) -> str:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["tab20"](request % 20))
