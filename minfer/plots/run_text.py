"""A recording as text: a chart of rows against steps, and the block map of one step."""

from minfer.plots.recording import CACHED, FREE, SHARED, Recording

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARKS = {FREE: "·", CACHED: "░", SHARED: "#"}


def letter(request: int, kind: str = "decode") -> str:
    """A request's sign: a capital where its prompt is computed, or computed again; a, b, … z, a, … for the others."""
    sign = LETTERS[request % len(LETTERS)]
    return sign if kind == "decode" else sign.upper()


def timeline(recording: Recording, width: int = 100) -> str:
    """Rows of the batch against steps; a chart wider than `width` columns goes on below."""
    rows = 1 + max((work.row for step in recording.work for work in step), default=0)
    lines = ["rows × steps: a letter per request, CAPITAL while its prompt is computed, space: the row is empty"]
    room = max(10, width - 8)
    for first in range(0, len(recording.work), room):
        steps = recording.work[first : first + room]
        chart = [[" "] * len(steps) for _ in range(rows)]
        for column, step in enumerate(steps):
            for work in step:
                chart[work.row][column] = letter(work.request, work.kind)
        lines += [f"step {first}"]
        lines += [f"{row:4d} │{''.join(line)}│" for row, line in enumerate(chart)]
    return "\n".join(lines)


def block_map(recording: Recording, step: int | None = None, width: int = 64) -> str:
    """Whose each block is after `step` (default: the one with most blocks in use), `width` blocks to a line."""
    if not recording.blocks:
        return "no blocks: this phase has no paged cache"
    step = busiest(recording) if step is None else step
    signs = [MARKS.get(owner) or letter(owner) for owner in recording.blocks[step]]
    lines = [f"blocks after step {step}: a letter per request, # shared, ░ free with a known prefix, · free"]
    touched = 1 + max((block for block, owner in enumerate(recording.blocks[step]) if owner != FREE), default=0)
    lines += [f"{first:5d} │{''.join(signs[first : first + width])}│" for first in range(0, touched, width)]
    rest = len(signs) - width * -(-touched // width)
    return "\n".join([*lines, f"      and {rest} more, all free"] if rest > 0 else lines)


def busiest(recording: Recording) -> int:
    """The first step after which most blocks are in use."""
    used = [sum(owner not in (FREE, CACHED) for owner in owners) for owners in recording.blocks]
    return used.index(max(used))
