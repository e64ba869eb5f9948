"""Figures of machines: counted operators, and models of time that say so, with their numbers on the axes."""

import json
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minfer.core.checkpoint.shapes import random_config
from minfer.core.measures.latency import e2e, tpot, ttft
from minfer.phase2.parameter_count import ParameterCount
from minfer.phase8 import Buckets
from minfer.phase10 import Place, ShardPlan
from scripts.lesson_figures.style import DARK, FOLDER, HATCH, LIGHT, MID, PALE, WARM, arrow, box, figure

OPERATORS = json.loads((FOLDER / "operators.json").read_text(encoding="utf-8"))


def operators() -> Figure:
    """Phase 7: operators of a decode step, before and after."""
    made = figure(9, 2.9)
    axes = made.subplots()
    kinds = dict(zip(OPERATORS["kinds"], (DARK, MID, LIGHT, PALE), strict=True))
    names = list(OPERATORS["rows"])
    for row, name in enumerate(names):
        start = 0
        for (kind, colour), calls in zip(kinds.items(), OPERATORS["rows"][name], strict=True):
            axes.barh(
                row,
                calls,
                0.65,
                left=start,
                color=colour,
                edgecolor=DARK,
                linewidth=0.5,
                label=kind if not row else None,
            )
            if calls > 20:  # there is room for the number
                axes.text(
                    start + calls / 2,
                    row,
                    str(calls),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if colour == DARK else "black",
                )
            start += calls
        axes.text(start + 8, row, f"{start:,}", va="center", weight="bold")
    totals = [sum(OPERATORS["rows"][name]) for name in (names[0], names[-1])]
    axes.set(
        yticks=range(len(names)),
        yticklabels=names,
        xlabel="operators called in one decode step of SmolLM2",
        xlim=(0, 1400),
    )
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.42), ncols=2)
    merged = OPERATORS["rows"][names[0]][0] - OPERATORS["rows"][names[1]][0]
    said = f"Merging takes {merged} products away, compiling most of the rest"
    axes.set_title(f"{said}: {totals[0]:,} calls become {totals[1]:,}")
    return made


def graphs() -> Figure:
    """Phase 8: a model of what launches cost; and the rows that buckets compute."""
    made = figure(9.6, 3.3)
    left, right = made.subplots(1, 2)
    count, launch = 213, 5.0
    kernels = [0.5 * k for k in range(1, 25)]
    left.plot(kernels, [(launch + count * k) / 1000 for k in kernels], color=DARK, label="replayed as a graph")
    launched = [count * max(launch, k) / 1000 for k in kernels]
    left.plot(kernels, launched, color=WARM, linestyle="--", linewidth=2, label="launched one by one")
    left.axvline(launch, color=LIGHT, linewidth=1)
    left.text(launch + 0.2, 0.1, "as long as its launch", fontsize=8)
    left.set(xlabel="µs that a kernel takes", ylabel="ms a step", ylim=(0, 3.4), xlim=(0, 12))
    left.legend(frameon=False, loc="upper left")
    left.set_title(f"A model of {count} kernels: below {launch:g} µs a graph helps")
    rows = range(1, 17)
    sizes = [Buckets(16, 1, 1000).holding(row, 1) for row in rows]
    right.bar(
        rows,
        [size.rows if size else 0 for size in sizes],
        0.8,
        color="white",
        edgecolor=DARK,
        hatch=HATCH,
        linewidth=0.5,
        label="padding",
    )
    right.bar(rows, rows, 0.8, color=DARK, label="requests")
    worst = max((size.rows / row, row) for size, row in zip(sizes, rows, strict=True) if size)
    right.set(xlabel="requests that decode", ylabel="rows that are computed", xticks=(1, 2, 4, 8, 16))
    right.legend(frameon=False, loc="upper left")
    right.set_title(f"Buckets of 1, 2, 4, 8, 16: at worst {worst[0]:.1f} × ({worst[1]} requests)")
    return made


def streams() -> Figure:
    """Phase 9: a model of three steps, one after another and overlapped."""
    made = figure(9.6, 3.4)
    plain, overlapped = made.subplots(2, 1, sharex=True)
    host, device = 2.0, 5.0
    for step in range(3):
        start = step * (host + device)
        _lane(plain, 1, start, host, f"prepare {step}", LIGHT)
        _lane(plain, 0, start + host, device, f"step {step}", DARK)
        arrow(plain, (start + host + device, 0.42), (start + host + device, 0.62))
    _lane(overlapped, 1, 0, host, "prepare 0", LIGHT)
    for step in range(3):
        _lane(overlapped, 0, host + step * device, device, f"step {step}", DARK)
        if step < 2:
            _lane(overlapped, 1, host + step * device, host, f"prepare {step + 1}", LIGHT)
        arrow(overlapped, (host + (step + 1) * device, 0.42), (host + (step + 1) * device, 0.62))
    before, after = 3 * (host + device), host + 3 * device
    for axes, title in (
        (
            plain,
            f"One after another: three steps in {before:g} ms, the card idle for {host:g} of each {host + device:g} ms",
        ),
        (overlapped, f"Overlapped: {after:g} ms; the host reads a step's ids (arrows) when the next step runs already"),
    ):
        axes.set(yticks=(0, 1), yticklabels=("card", "host"), ylim=(-0.5, 1.5), xlim=(0, before + 0.5))
        axes.set_title(title)
    overlapped.set_xlabel(f"ms, in a model: the host takes {host:g} ms a step, the card {device:g}")
    return made


def _lane(axes: Axes, lane: int, start: float, width: float, text: str, colour: str) -> None:
    box(axes, start, lane - 0.36, width, 0.72, text, colour)


def ranks() -> Figure:
    """Phase 10: the two ways to cut a layer's products; and what a rank holds."""
    made = figure(9.6, 3.5)
    left, right = made.subplots(1, 2, width_ratios=(1.6, 1))
    for rank, (colour, y) in enumerate(((PALE, 2.2), (LIGHT, 0.2))):
        box(left, 0, y, 0.9, 1.2, "x\n(whole)", "white")
        box(left, 1.5, y, 1.7, 1.2, f"rank {rank}\ncolumns of\nq k v, gate up", colour)
        box(left, 3.8, y, 1.3, 1.2, "its heads,\nits inner\nchannels", colour)
        box(left, 5.7, y, 1.7, 1.2, f"rank {rank}\nrows of\no, down", colour)
        for start, end in ((0.9, 1.5), (3.2, 3.8), (5.1, 5.7)):
            arrow(left, (start, y + 0.6), (end, y + 0.6))
        arrow(left, (7.4, y + 0.6), (8.0, 1.8))
    box(left, 8.0, 1.4, 1.3, 0.8, "all-reduce\nΣ", DARK)
    left.set(xlim=(-0.1, 9.5), ylim=(0, 3.6))
    left.axis("off")
    left.set_title("Columns, then rows: one sum after attention, one after the MLP")
    config = random_config("random:llama3-8b")
    sizes = {n: ParameterCount.of(ShardPlan(config, Place.of(0, n, 1)).config) for n in (1, 2, 4, 8)}
    shares = []
    for place, (count, parameters) in enumerate(sizes.items()):
        vocabulary = 2 * ShardPlan(config, Place.of(0, count, 1)).rows * config.hidden_size
        total = 2 * (parameters.attention + parameters.mlp + parameters.norms + vocabulary) / 1e9
        right.bar(place, total, 0.6, color=DARK)
        right.text(place, total + 0.2, f"{total:.2f}", ha="center")
        shares.append(total)
    right.set(
        xticks=range(4), xticklabels=sizes, xlabel="ranks (tensor parallel)", ylabel="GB of weights per rank, bfloat16"
    )
    right.set_title(f"Llama 3 8B: {shares[0]:.1f} GB on one, {shares[-1]:.1f} on each of 8")
    return made


def latencies() -> Figure:
    """Phase 11: one request's life, and what each latency measures."""
    arrived, scheduled, tokens = 0.0, 0.6, [1.4, 1.7, 2.0, 3.1, 3.4, 3.7]
    made = figure(9.6, 2.9)
    axes = made.subplots()
    box(axes, arrived, 0, scheduled, 0.6, "queue", PALE)
    box(axes, scheduled, 0, 0.7, 0.6, "prefill", MID)
    box(axes, 1.3, 0, 0.1, 0.6, "", DARK)
    for number, (start, end) in enumerate(pairwise(tokens)):
        box(axes, start, 0, end - start, 0.6, f"ITL {end - start:.1f}", LIGHT if number != 2 else WARM)
    for token in tokens:
        axes.plot([token], [0.72], marker="v", color=DARK, markersize=5)
    took = tpot(tokens) or 0.0
    spans = (
        (1.05, arrived, tokens[0], f"TTFT {ttft(arrived, tokens):.1f} s"),
        (1.05, tokens[0], tokens[-1], f"5 × TPOT, {took:.2f} s each"),
        (1.5, arrived, tokens[-1], f"E2E {e2e(arrived, tokens):.1f} s"),
    )
    for height, start, end, text in spans:
        arrow(axes, (start, height), (end, height), both=True)
        axes.text((start + end) / 2, height + 0.06, text, ha="center", fontsize=8)
    axes.text(1.35, -0.12, "first sample", ha="center", va="top", fontsize=8)
    axes.text(2.55, -0.12, "another request's prompt was computed", ha="center", va="top", fontsize=8)
    axes.set(
        xlim=(-0.05, 3.85),
        ylim=(-0.4, 1.85),
        xlabel="seconds since the request arrived; a triangle: a token is known",
        yticks=(),
    )
    axes.spines["left"].set_visible(False)
    longest = max(end - start for start, end in pairwise(tokens))
    axes.set_title(f"A mean of {took:.2f} s a token hides the one gap of {longest:.1f} s that the user saw")
    return made
