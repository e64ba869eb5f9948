"""`minfer bench sweep`: what a batch costs each request, and what it gives all of them: latency against throughput."""

from typing import Any

from rich.console import Console

from minfer.bench import ledger, workloads
from minfer.bench.contestants import EngineContestant
from minfer.bench.figures import figures
from minfer.bench.runner import interleave
from minfer.bench.sample import Sample, Spread
from minfer.bench.simulation import simulate
from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.hub import resolve
from minfer.cost.cost_model import CostModel, Setup
from minfer.cost.hardware import calibrated
from minfer.phase2 import Engine, EngineOptions
from minfer.plots.recording import Recording

KIND = "sweep"
BLOCK = 16


def batches(most: int) -> list[int]:
    """1, 2, 4, … up to `most`, which is the last whatever it is."""
    powers = [2**power for power in range(most.bit_length()) if 2**power < most]
    return [*powers, most]


class Sweep:
    """Some phases on batches of growing size, the same requests for each of them."""

    def __init__(self, model: str, device: str, asked: dict[str, Any], console: Console) -> None:
        """`asked`: phases, max_concurrency, input_len, output_len, repeats."""
        self.model, self.asked, self.console = model, asked, console
        self.device = Device.get(device)
        options = EngineOptions(device=self.device, dtype="float32")
        self.module: Any = Engine.build_model(Checkpoint(resolve(model)), options)
        tokens, most = asked["input_len"] + asked["output_len"], asked["max_concurrency"]
        self.pool = most * (-(-tokens * 3 // 2 // BLOCK) + 1)
        self.contestants = [self.contestant(phase) for phase in asked["phases"]]

    def contestant(self, phase: int) -> EngineContestant:
        """An engine with room for the largest batch."""
        options: dict[str, Any] = {"max_batch": self.asked["max_concurrency"]} if phase >= 4 else {}
        if phase >= 5:
            options |= {"num_blocks": self.pool, "block_size": BLOCK}
        return EngineContestant(phase, self.module, **options)

    def measure(self) -> dict[str, Any]:
        """The ledger: a part for each batch."""
        parts = []
        for count in batches(self.asked["max_concurrency"]):
            work = self.workload(count)
            entry = ledger.entry(work, interleave(self.contestants, work, self.asked["repeats"], self.console))
            for row, phase in zip(entry["rows"], self.asked["phases"], strict=True):
                row["figures"] = figures(ledger.runs(row), work.input_tokens)
                row["predicted"] = self.predicted(phase, work)
            parts.append({**entry, "batch": count})
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in self.asked.items() if name != "phases"]
        return {
            "schema": ledger.SCHEMA,
            "kind": KIND,
            "command": " ".join(["minfer bench sweep -m", self.model, *flags, *self._phases()]),
            "model": self.model,
            "dtype": "float32",
            "device": str(self.device.torch_device),
            "environment": ledger.environment(),
            "parts": parts,
        }

    def workload(self, count: int) -> workloads.Workload:
        """So many requests of one length."""
        lengths = self.asked["input_len"], self.asked["output_len"]
        return workloads.decode(self.module.config.vocab_size, count, *lengths)

    def predicted(self, phase: int, work: workloads.Workload) -> dict[str, float] | None:
        """By the cost model, if this machine was calibrated."""
        if (hardware := calibrated()) is None:
            return None
        model = CostModel(Setup(self.module.config, phase), hardware)
        sample, _, _ = simulate(model, work, len(work.requests))
        return point(sample)

    def recording(self) -> Recording:
        """Who held which row and which blocks when requests of differing lengths were served by the last phase."""
        config = self.module.config
        lengths = self.asked["input_len"], self.asked["output_len"]
        work = workloads.batch(config.vocab_size, 2 * self.asked["max_concurrency"], *lengths)
        engine: Any = self.contestant(self.asked["phases"][-1]).engine
        prompts = [request.prompt_ids for request in work.requests]
        sequences = engine.sequences(prompts, [request.params for request in work.requests])
        made = Recording()
        for advanced in engine.run(sequences):
            made.note(engine, sequences, advanced)
        return made

    def _phases(self) -> list[str]:
        return [f"--phase {phase}" for phase in self.asked["phases"]]


def point(sample: Sample) -> dict[str, float]:
    """A run's place in the figure: ms per token of a request, and tokens per second of all."""
    return {"tpot_ms": sample.tpot_ms, "throughput": sample.decode_throughput}


def measured(row: dict[str, Any]) -> dict[str, float]:
    """The median place of a row's runs."""
    points = [point(sample) for sample in ledger.runs(row)]
    return {name: Spread.of(one[name] for one in points).median for name in ("tpot_ms", "throughput")}
