"""Charts of a recording: which request held which row of the batch in each step, and whose each block was.

Read in grey: requests are told apart by their numbers and by the lines between them, not by colours.
"""

from typing import Any

from minfer.plots.chart import SHADES, name
from minfer.plots.recording import CACHED, FREE, SHARED, Recording

PALE, MIDDLE, DARK = SHADES[4], SHADES[3], SHADES[0]


def timeline(axes: Any, recording: Recording, title: str) -> None:
    """Rows of the batch against steps; hatched while a prompt is computed; a row without a bar is empty."""
    for request, row, first, last, prefill in stretches(recording):
        axes.barh(
            row,
            last - first + 1,
            0.86,
            left=first,
            color=MIDDLE if request % 2 else PALE,
            hatch="////" if prefill else None,
            edgecolor=DARK,
            linewidth=0.5,
        )
        if not prefill:
            axes.text(first + 0.4, row, str(request), va="center", fontsize=8, clip_on=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlim=(0, len(recording.work)), ylim=(_rows(recording) - 0.5, -0.5))
    name(axes, "step", "row of the batch", title)


def stretches(recording: Recording) -> list[tuple[int, int, int, int, bool]]:
    """(request, row, first step, last step, whether its prompt was computed): unbroken runs of one kind of work."""
    made: list[tuple[int, int, int, int, bool]] = []
    open_: dict[tuple[int, int, bool], tuple[int, int]] = {}
    for step, work in enumerate(recording.work):
        now = {(one.request, one.row, one.kind != "decode") for one in work}
        for key in set(open_) - now:
            made.append((*key[:2], *open_.pop(key), key[2]))
        for key in now:
            open_[key] = (open_.get(key, (step, step))[0], step)
    made += [(*key[:2], *steps, key[2]) for key, steps in open_.items()]
    return sorted(made, key=lambda one: (one[2], one[1]))


def busy(recording: Recording) -> float:
    """The share of rows that had work, of all rows in all steps."""
    return sum(map(len, recording.work)) / (_rows(recording) * len(recording.work))


def block_map(axes: Any, recording: Recording, title: str) -> None:
    """Blocks of the pool against steps: white free, pale grey kept for its prefix, black shared, greys by request."""
    shades = {FREE: 0.0, CACHED: 0.12, SHARED: 1.0}
    highest = 1 + max(block for owners in recording.blocks for block, owner in enumerate(owners) if owner != FREE)
    image = [
        [shades.get(owners[block], 0.3 + 0.12 * (owners[block] % 5)) for owners in recording.blocks]
        for block in range(highest)
    ]
    axes.imshow(image, cmap="Greys", aspect="auto", interpolation="nearest", vmin=0, vmax=1, origin="lower")
    for block in range(highest):
        _write_owners(axes, recording, block)
    name(axes, "step", "block of the pool", title)


def _write_owners(axes: Any, recording: Recording, block: int) -> None:
    """A request's number where the block becomes its own."""
    before = FREE
    for step, owners in enumerate(recording.blocks):
        owner = owners[block]
        if owner >= 0 and owner != before:
            white = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.text(step, block, str(owner), fontsize=7, va="center", bbox=white, clip_on=True)
        before = owner


def _rows(recording: Recording) -> int:
    return 1 + max(one.row for work in recording.work for one in work)
