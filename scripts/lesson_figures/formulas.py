"""Figures of formulas: the library's own, with published shapes put in."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minfer.core.checkpoint import Checkpoint
from minfer.core.checkpoint.shapes import random_config
from minfer.core.device.cards import find_card
from minfer.core.hub import resolve
from minfer.phase2 import MemoryBudget
from minfer.phase6.int4 import Int4
from scripts.lesson_figures.style import DARK, HATCH, LIGHT, MID, PALE, WARM, figure

GIB, GB = 2**30, 10**9


def what_fits() -> Figure:
    """Phase 2: where a card's memory goes, by the dtype of the weights; and what loading needs at its peak."""
    config, card = random_config("random:llama3-8b"), find_card("rtx4090")
    made = figure(9.6, 3.4)
    left, right = made.subplots(1, 2, width_ratios=(1.7, 1))
    dtypes, fitting = ("float32", "bfloat16", "int8", "int4-g128"), []
    for row, dtype in enumerate(dtypes):
        budget = MemoryBudget(config, card.memory, dtype, batch=8, context=8192, kv_dtype="bfloat16")
        parts = [budget.weights + budget.rotary_table, budget.kv_cache, budget.activations, budget.reserve]
        start = 0.0
        for part, colour in zip(parts, (DARK, MID, LIGHT, PALE), strict=True):
            left.barh(row, part / GIB, 0.7, left=start, color=colour, edgecolor=DARK, linewidth=0.5)
            start += part / GIB
        left.text(start + 0.4, row, f"{start:.1f}", va="center", fontsize=8)
        fitting += [dtype] if budget.fits else []
    left.axvline(card.memory / GIB, color=WARM, linewidth=1.5, linestyle="--")
    left.text(card.memory / GIB + 0.3, 3.45, "24 GB card", fontsize=8, va="center")
    left.set(
        yticks=range(4), yticklabels=dtypes, xlabel="GiB: weights, KV cache, activations, runtime", ylim=(3.7, -0.6)
    )
    left.set_title(f"Llama 3 8B with 8 × 8,192 tokens: {' and '.join(fitting)} fit")
    budget = MemoryBudget(config, card.memory, "bfloat16")
    final, largest = budget.weights / GB, budget.parameters.largest * 2 / GB
    peaks = {
        "phase 1:\nbuild in float32,\nconvert, move": 2 * final,
        "phase 2:\none tensor\nat a time": final + largest,
    }
    for row, peak in enumerate(peaks.values()):
        right.barh(row, final, 0.6, color=DARK)
        hatched = {"color": "white", "edgecolor": DARK, "hatch": HATCH, "linewidth": 0.6}
        right.barh(row, peak - final, 0.6, left=final, **hatched)
        right.text(peak + 0.4, row, f"{peak:.1f}", va="center", fontsize=8)
    right.set(yticks=range(2), yticklabels=peaks, xlabel="GB at the peak of loading", xlim=(0, 38), ylim=(1.6, -0.6))
    right.set_title(f"Dark: the {final:.1f} GB that stay")
    return made


def kv_bars(axes: Axes) -> None:
    """Bytes of keys and values per token in 16 bits, and what they would be with a pair for every query head."""
    shapes = ("llama2-7b", "llama3-8b", "qwen2.5-7b", "smollm2-135m")
    for row, shape in enumerate(shapes):
        config = random_config(f"random:{shape}")
        kept = 2 * config.kv_numbers_per_token / 1024
        groups = config.num_heads // config.num_kv_heads
        axes.barh(row, kept * groups, 0.7, color="white", edgecolor=DARK, hatch=HATCH, linewidth=0.5)
        axes.barh(row, kept, 0.7, color=DARK)
        axes.text(
            kept * groups + 8, row, f"{kept:g} KiB" + (f", not {kept * groups:g}" if groups > 1 else ""), va="center"
        )
    axes.set(yticks=range(len(shapes)), yticklabels=shapes, xlabel="KiB of KV cache per token, 16 bits", xlim=(0, 820))
    axes.invert_yaxis()
    axes.set_title("Grouped heads (GQA) divide the cache by 3 to 7")


def levels() -> Figure:
    """Phase 6: sixteen levels over each group of weights; and what formats take per weight."""
    scheme, columns = Int4(32), 64
    checkpoint = Checkpoint(resolve("tiny"))
    weight = read(checkpoint, "layers.0.self_attn.q_proj.weight")[7:8, :columns].double()
    parts = scheme.encode(weight)
    error = (scheme.dequantize(parts, columns, torch.float64) - weight).abs().max().item()
    made = figure(9.6, 3.4)
    left, right = made.subplots(1, 2, width_ratios=(1.7, 1))
    for group in range(2):
        scale, zero = parts["scale"][0, group].item(), parts["zero"][0, group].item()
        for code in range(16):
            level = (code - 8) * scale + zero
            left.hlines(round(level, 5), 32 * group - 0.5, 32 * group + 31.5, color=LIGHT, linewidth=0.7)
    left.plot([round(w, 5) for w in weight[0].tolist()], "o", color=DARK, markersize=3)
    left.axvline(31.5, color=WARM, linestyle="--", linewidth=1)
    steps = [round(scale.item(), 3) for scale in parts["scale"][0]]
    left.set(xlabel="column of one row of q_proj: two groups of 32", ylabel="weight", xlim=(-1, 64))
    left.set_title(f"int4: each group has 16 levels of its own, {steps[0]} and {steps[1]} apart; error ≤ {error:.3f}")
    formats = {
        "float32": 4.0,
        "bfloat16": 2.0,
        "int8": 1 + 4 / 576,
        "int4-g128": 0.5 + 4 / 128,
        "int4-g32": 0.5 + 4 / 32,
    }
    right.barh(list(formats), list(formats.values()), 0.7, color=(PALE, LIGHT, MID, DARK, DARK), edgecolor=DARK)
    for row, size in enumerate(formats.values()):
        right.text(size + 0.05, row, f"{size:.3g}", va="center", fontsize=8)
    right.set(xlabel="bytes per weight, scales included (576 wide)", xlim=(0, 4.6))
    right.invert_yaxis()
    right.set_title("“4 bits” are 5 with a scale per 32")
    return made


def read(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """One tensor of a checkpoint, by the model's name of it."""
    from minfer.core.models import skeleton

    return checkpoint.plan(skeleton(checkpoint))[name].read(torch.float32, torch.device("cpu"))
