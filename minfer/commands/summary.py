"""The line that ends a generation: how much, how fast, by what."""

from typing import Any

from minfer.core.checkpoint import Checkpoint
from minfer.core.checkpoint.shapes import RandomCheckpoint, is_random
from minfer.core.hub import resolve
from minfer.core.sequence import Sequence


def single_summary(engine: Any, model: str, phase: int, sequences: list[Sequence]) -> str:
    """For one prompt: tokens, why they ended, time to the first, speed after it."""
    stamps = sequences[0].timestamps
    count = sum(len(sequence.output_ids) for sequence in sequences)
    parts = [f"{count} tokens ({' '.join(map(_ending, sequences))})"]
    if stamps.tokens:
        parts.append(f"first after {1000 * (stamps.tokens[0] - stamps.arrived):.0f} ms")
    ends = [sequence.timestamps.tokens[-1] for sequence in sequences if sequence.timestamps.tokens]
    if count > 1:
        parts.append(f"then {_rate(count - 1, max(ends) - stamps.tokens[0])}")
    return f"minfer: {', '.join(parts)}; {_setting(engine, model, phase)}"


def batch_summary(engine: Any, model: str, phase: int, sequences: list[Sequence]) -> str:
    """For a batch: requests, tokens, time and speed over all of it."""
    count = sum(len(sequence.output_ids) for sequence in sequences)
    start = min(sequence.timestamps.arrived for sequence in sequences)
    seconds = max(sequence.timestamps.finished or start for sequence in sequences) - start
    speed = f"{count} tokens in {seconds:.2f} s, {_rate(count, seconds)}"
    return f"minfer: {len(sequences)} answers, {speed}; {_setting(engine, model, phase)}"


def _ending(sequence: Sequence) -> str:
    assert sequence.finish_reason is not None
    return sequence.finish_reason.value


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / max(seconds, 1e-9):.1f} tokens/s"


def _setting(engine: Any, model: str, phase: int) -> str:
    """Which model, phase, device and dtype, and why that dtype; which kernels ran, and what was compiled."""
    dtype = str(engine.dtype).removeprefix("torch.")
    checkpoint = RandomCheckpoint(model) if is_random(model) else Checkpoint(resolve(model))
    _, reason = engine.device.dtype(engine.options.dtype, checkpoint.dtype)
    parts = [f"{model}, phase {phase}, {engine.device.torch_device}, {dtype} ({reason})"]
    if kernels := [name for name, use in getattr(engine, "kernels", {}).items() if use.ran]:
        parts.append(f"weights by {', '.join(kernels)}")
    if compilation := getattr(engine, "compilation", None):
        parts.append(str(compilation))
    return "; ".join(parts)
