"""`minfer bench ops`: how many operators one decode step calls, before and after fusion."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minfer.bench.contestants import engine_class
from minfer.bench.grid import Grid
from minfer.bench.operators import KINDS, Operators
from minfer.core.checkpoint import Checkpoint
from minfer.core.hub import resolve
from minfer.core.params import SamplingParams
from minfer.phase2 import Engine, EngineOptions

PROMPT, WARM = 8, 3  # tokens of each prompt; steps before the one that is counted: the prefill, and two decodes
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "phase 5": (5, {}),
    "phase 7, fused": (7, {"compiler": "none"}),
    "phase 7, compiled": (7, {"compiler": "inductor"}),
}
BATCHES = (1, 8)


def count(model: str, dtype: str, variants: list[str]) -> Grid:
    """The table of calls per step; `variants` are names of `VARIANTS`."""
    checkpoint, options = Checkpoint(resolve(model)), EngineOptions(device="cpu", dtype=dtype)
    rows = []
    for name in variants:
        phase, more = VARIANTS[name]
        with _kernels_named():
            made = engine_class(phase).Options(num_blocks=4 * max(BATCHES), **more)
            engine = engine_class(phase)(Engine.build_model(checkpoint, options), None, made)
            for batch in BATCHES:
                calls = decode_step(engine, batch).calls
                numbers = [calls[kind] for kind in KINDS]
                rows.append([f"{name}, batch {batch}", *(f"{number:,}" for number in [*numbers, sum(numbers)])])
    return Grid(f"operators called in one decode step of {model}", ["", *KINDS, "in all"], rows)


def decode_step(engine: Any, batch: int) -> Operators:
    """What one step calls that decodes one token of each of `batch` requests."""
    params = SamplingParams(max_tokens=WARM + 2, ignore_eos=True)
    running = [engine.submit([3 + number] * PROMPT, params) for number in range(batch)]
    for _ in range(WARM):
        engine.step()
    seen = Operators.of(engine.step)
    while not all(sequence.finished for sequence in running):
        engine.step()
    return seen


@contextmanager
def _kernels_named() -> Iterator[None]:
    """Let kernels that are compiled meanwhile show themselves to the profiler."""
    import torch._inductor.config as inductor

    with inductor.patch({"cpp.enable_kernel_profile": True}):
        yield
