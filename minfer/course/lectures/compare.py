"""Compare: the same requests on the engines of two phases, and what each made of them: counts before seconds."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from minfer.bench.workloads import Workload, mixed, shared_prefix, single
from minfer.commands.phases import engine_class
from minfer.core.errors import OptionsError

WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "single": lambda vocab_size: single(vocab_size, prompt=32, new=32),
    "mixed": lambda vocab_size: mixed(vocab_size, count=12, low=8, high=48),
    "prefix": lambda vocab_size: shared_prefix(vocab_size, count=8, prefix=96, own=8, new=8),
}
WARMUP = [3, 3, 3, 3]
"""A first request, which is not counted; it shares no beginning with another."""


@dataclass
class Effect:
    """What an engine did with a workload. Times are in seconds by its device's clock."""

    phase: int
    steps: int = 0
    computed: int = 0  # positions that went through the model, padding too
    padding: int = 0
    kv_bytes: int = 0  # the most that requests held at once, reserved for them or filled
    unused: list[float] = field(default_factory=list)  # after each step, the share of it that held nothing
    waited: list[int] = field(default_factory=list)  # steps until each request's first token
    output: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, phase: int, model: str, workload: str) -> "Effect":
        """Run the workload on phase `phase`'s engine. Raises `MinferError`."""
        if workload not in WORKLOADS:
            raise OptionsError(f"workload {workload!r} is unknown: use one of {', '.join(WORKLOADS)}")
        engine = engine_class(phase).load(model, device="cpu")
        requests = WORKLOADS[workload](engine.config.vocab_size).requests
        engine.generate([WARMUP], replace(requests[0].params, max_tokens=len(WARMUP)))
        effect = cls(phase)
        effect.watch(engine)
        sequences = engine.sequences([one.prompt_ids for one in requests], [one.params for one in requests])
        started = engine.device.clock()
        for advanced in engine.run(sequences):
            effect.waited += [effect.steps for sequence in advanced if len(sequence.output_ids) == 1]
            effect.look(engine)
        effect.seconds = engine.device.clock() - started
        effect.output = sum(len(sequence.output_ids) for sequence in sequences)
        return effect

    def watch(self, engine: Any) -> None:
        """Count what each step of the engine computes."""
        prepare = engine.prepare

        def counted(sequences: list[Any]) -> Any:
            batch = prepare(sequences)
            wanted = sum(sequence.num_scheduled for sequence in sequences) or batch.input_ids.numel()
            self.steps += 1
            self.computed += batch.input_ids.numel()
            self.padding += batch.input_ids.numel() - wanted
            return batch

        engine.prepare = counted

    def look(self, engine: Any) -> None:
        """Note what the engine's cache holds after a step; before phase 3 there is none."""
        if hasattr(engine, "kv_usage"):
            usage, slot_bytes = engine.kv_usage(), engine.config.kv_numbers_per_token * engine.dtype.itemsize
            self.kv_bytes = max(self.kv_bytes, usage.allocated * slot_bytes)
            self.unused.append(usage.unused)

    def figures(self) -> dict[str, float]:
        """By name, in the order to show them."""
        return {
            "steps": self.steps,
            "tokens computed": self.computed,
            "of them padding": self.padding,
            "KV cache, most bytes": self.kv_bytes,
            "of them unused, %, mean": 100 * sum(self.unused) / max(1, len(self.unused)),
            "steps to the first token, mean": sum(self.waited) / len(self.waited),
            "output tokens": self.output,
            "tokens/s, one run": self.output / self.seconds,
        }


def shown(value: float) -> str:
    """A figure as people write it."""
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"
