"""Figures of what engines do: counted on the embedded model, so that they are the same on every machine."""

from itertools import accumulate
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minfer import SamplingParams
from minfer.plots.recording import Recording, Work
from scripts.lesson_figures.style import DARK, HATCH, LIGHT, MID, PALE, WARM, arrow, box, figure

TEXT = "To be, or not to be"
PROMPTS = [TEXT, "O Romeo", "In the beginning God created the heaven and the earth. And the earth was", "KING RICHARD:"]
LIMITS = [8, 40, 24, 60]
MANY = [8, 40, 24, 60, 12, 36, 20, 48, 10, 30, 16, 56]


def load(phase: int, **options: Any) -> Any:
    """A phase's engine for tiny in float32 on the CPU."""
    import importlib

    return importlib.import_module(f"minfer.phase{phase}").Engine.load("tiny", device="cpu", dtype="float32", **options)


def answers(limits: list[int]) -> list[SamplingParams]:
    """Greedy answers of just these lengths."""
    return [SamplingParams(max_tokens=limit, ignore_eos=True) for limit in limits]


def loop() -> Figure:
    """Phase 1: the stations of a step, and what a draw does with the row of logits."""
    engine = load(1)
    (sequence,) = engine.sequences("To be, or not to")
    with torch.inference_mode():
        logits = engine.forward(engine.prepare([sequence]))[0]
    likeliest = logits.topk(6).indices.tolist()
    words = [engine.tokenizer.decode([token]).strip() for token in likeliest]
    made = figure(9.6, 3.2)
    left, right = made.subplots(1, 2, width_ratios=(1.5, 1))
    ids = ", ".join(map(str, sequence.token_ids))
    stations = [
        ("text\n“To be, or not to”", PALE),
        (f"token ids\n{ids}", PALE),
        ("model\n5 layers: attention, MLP", DARK),
        (f"logits of the last row\n{len(logits):,} numbers", PALE),
        (f"draw\n{likeliest[0]} = “{words[0]}”", LIGHT),
    ]
    for place, (text, colour) in enumerate(stations):
        box(left, 0, 4 - place, 5, 0.62, text, colour)
        if place:
            arrow(left, (2.5, 5 - place), (2.5, 4.62 - place))
    left.plot([5, 5.7, 5.7], [0.3, 0.3, 3.3], color=DARK, linewidth=1)
    arrow(left, (5.7, 3.3), (5, 3.3))
    left.text(5.8, 1.8, "append,\nrun all\nof it\nagain", va="center", fontsize=8)
    left.set(xlim=(-0.1, 7), ylim=(-0.15, 4.8), title=f"One step: {len(sequence.token_ids)} ids in, one token out")
    left.axis("off")
    for offset, temperature, colour in ((-0.2, 1.0, LIGHT), (0.2, 0.5, DARK)):
        chances = (logits / temperature).softmax(-1)[likeliest].tolist()
        bars = [round(chance, 3) for chance in chances]
        right.barh([n + offset for n in range(6)], bars, 0.4, color=colour, label=f"temperature {temperature:g}")
        if temperature != 1.0:
            right.set_title(f"Temperature 0.5: “{words[0]}” from {logits.softmax(-1).max():.0%} to {bars[0]:.0%}")
    right.set(yticks=range(6), yticklabels=words, xlabel="probability of the next token", ylim=(5.6, -0.6))
    right.legend(frameon=False, loc="lower right")
    return made


def tokens_fed() -> Figure:
    """Phase 3: what each step feeds without and with a cache; and what the cache takes with grouped heads."""
    from scripts.lesson_figures.formulas import kv_bars

    counts = {phase: fed_per_step(load(phase)) for phase in (2, 3)}
    made = figure()
    left, right = made.subplots(1, 2, width_ratios=(1.2, 1))
    steps = range(len(counts[2]))
    left.fill_between(steps, counts[2], color=LIGHT, step="post", label=f"phase 2: {sum(counts[2]):,} tokens")
    left.fill_between(steps, counts[3], color=DARK, step="post", label=f"phase 3: {sum(counts[3]):,} tokens")
    ratio = sum(counts[2]) / sum(counts[3])
    left.set(xlabel="step (one new token each)", ylabel="tokens through the model", xlim=(0, 63), ylim=(0, 78))
    left.set_title(f"A prompt of 8, an answer of 64: {ratio:.0f} times less work")
    left.legend(frameon=False, loc="upper left")
    kv_bars(right)
    return made


def fed_per_step(engine: Any) -> list[int]:
    """How many tokens each forward of one answer of 64 tokens computes."""
    fed: list[int] = []
    inner = engine.forward
    engine.forward = lambda batch: (fed.append(batch.input_ids.numel()), inner(batch))[1]
    engine.generate(TEXT, answers([64]))
    return fed


def padding() -> Figure:
    """Phase 4: what the first step computes, and what the cache's rectangle ever holds."""
    engine = load(4)
    lengths = [len(sequence.token_ids) for sequence in engine.sequences(PROMPTS, answers(LIMITS))]
    rows, width = len(lengths), max(lengths)
    made = figure(9.6, 3.0)
    left, right = made.subplots(1, 2, width_ratios=(1, 2), sharey=True)
    for row, length in enumerate(lengths):
        left.barh(row, length, 0.8, color=DARK)
        left.barh(row, width - length, 0.8, left=length, color="white", edgecolor=DARK, hatch=HATCH, linewidth=0.5)
    left.set(xlabel="column of the first step (tokens)", ylabel="request", yticks=range(rows), ylim=(3.6, -0.6))
    left.set(xlim=(0, width + 0.4), xticks=range(0, width + 1, 4))
    left.set_title(f"Prefill: {rows * width} computed for {sum(lengths)}")
    capacity = max(length + limit for length, limit in zip(lengths, LIMITS, strict=True))
    held = sum(length + limit - 1 for length, limit in zip(lengths, LIMITS, strict=True))
    for row, (length, limit) in enumerate(zip(lengths, LIMITS, strict=True)):
        spans = [(length, DARK, None), (limit - 1, MID, None), (capacity - length - limit + 1, "white", HATCH)]
        starts = accumulate((span[0] for span in spans[:-1]), initial=0)
        for start, (size, colour, hatch) in zip(starts, spans, strict=True):
            right.barh(row, size, 0.8, left=start, color=colour, hatch=hatch, edgecolor=DARK, linewidth=0.5)
    right.set(xlabel=f"slot of the cache: {rows} rows of {capacity} tokens (dark: prompt, mid: answer, hatched: never)")
    right.set_title(f"Cache: at most {held / (rows * capacity):.0%} of what is reserved ever holds a token")
    return made


def continuous() -> Figure:
    """Phase 5: who holds which row in a static and in a continuous batch; how much of the cache is empty."""
    made = figure(9.6, 6.2)
    static, paged, empty = made.subplots(3, 1, sharex=True, height_ratios=(1, 1, 1))
    for axes, phase, name in ((static, 4, "Static batches"), (paged, 5, "Continuous batching")):
        recording, usages = record(load(phase, max_batch=4))
        _rows(axes, recording, name)
        style = {"color": DARK, "linewidth": 1.6} if phase == 5 else {"color": WARM, "linestyle": "--"}
        mean = 1 - sum(usage.held for usage in usages) / sum(usage.allocated for usage in usages)
        label = f"{'blocks of 16' if phase == 5 else 'a row for the longest answer'}: {mean:.0%} of all"
        empty.plot([100 * usage.unused for usage in usages], label=label, **style)
    empty.set(xlabel="step", ylabel="% of slots empty", ylim=(0, 100))
    empty.set_title("Reserved slots of the KV cache that hold no token: pages lose only the end of each last block")
    empty.legend(frameon=False, loc="center right")
    return made


def record(engine: Any) -> tuple[Recording, list[Any]]:
    """A run of twelve requests, four at a time: its steps, and how the cache was used after each."""
    recording, usages = Recording(), []
    sequences = engine.sequences(PROMPTS * 3, answers(MANY))
    for advanced in engine.run(sequences):
        recording.note(engine, sequences, advanced)
        usages.append(engine.kv_usage())
    return recording, usages


def _rows(axes: Axes, recording: Recording, name: str) -> None:
    first: dict[int, tuple[int, Work]] = {}
    shades = (PALE, LIGHT, MID)
    for step, work in enumerate(recording.work):
        for one in work:
            first.setdefault(one.request, (step, one))
    for request, (start, one) in first.items():
        stop = 1 + max(step for step, work in enumerate(recording.work) if any(w.request == request for w in work))
        colour = shades[request % 3]
        axes.barh(one.row, stop - start, 0.85, left=start, color=colour, edgecolor=DARK, linewidth=0.7)
        axes.text(start + 1, one.row, str(request), va="center", fontsize=8)
    steps = len(recording.work)
    busy = sum(map(len, recording.work)) / (4 * steps)
    axes.set(ylabel="row", yticks=range(4), ylim=(3.6, -0.6), xlim=(0, 168))
    axes.set_title(f"{name}: twelve requests in {steps} steps, {busy:.0%} of the rows busy")
