"""`minfer bench table`: every optimisation as a row of one table, interleaved, resumable, each cell with its reason."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from rich.console import Console
from torch import nn

from minfer.bench import ledger
from minfer.bench.anatomy import anatomy, event_seconds
from minfer.bench.contestants import Contestant, EngineContestant
from minfer.bench.fast import Row
from minfer.bench.figures import figures
from minfer.bench.guard import Guard
from minfer.bench.probes import reading
from minfer.bench.runner import brief, interleave
from minfer.bench.simulation import simulate
from minfer.bench.variants import BLOCK, VARIANTS, Rows
from minfer.bench.workloads import batch
from minfer.core.checkpoint import Checkpoint
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.errors import MinferError, OptionsError
from minfer.core.hub import resolve
from minfer.core.measures.bandwidth import copy_bandwidth
from minfer.core.measures.peak_memory import PeakMemory
from minfer.cost.cost_model import CostModel
from minfer.cost.hardware import calibrated
from minfer.phase2 import Engine, EngineOptions

KIND = "table"


class FullTable:
    """One table: its rows, its workload, and the ledger that grows with every run."""

    def __init__(self, model: str, device: str, asked: dict[str, Any], out: Path | None, console: Console) -> None:
        """`asked`: num_prompts, input_len, output_len, repeats, seed, only: what must agree to go on with a file."""
        self.folder, self.device, self.console = resolve(model), Device.get(device), console
        self.model, self.asked = model, asked
        self.module: nn.Module = Engine.build_model(
            Checkpoint(self.folder), EngineOptions(device=self.device, dtype="float32")
        )
        self.config = cast(ModelConfig, self.module.config)
        lengths = (asked["input_len"], asked["output_len"])
        if sum(lengths) * 3 // 2 + 1 > self.config.context:
            raise OptionsError(
                f"--input-len {lengths[0]} and --output-len {lengths[1]}, each up to half as long again, are more than "
                f"the {self.config.context} tokens that {model} takes"
            )
        self.workload = batch(self.config.vocab_size, asked["num_prompts"], *lengths, asked["seed"])
        self.made = ledger.resumed(out, command(model, asked), console) or self._begun()
        self.save = partial(ledger.save, out, self.made)

    # ---- the ledger ----------------------------------------------------------------------------------------------

    def _begun(self) -> dict[str, Any]:
        return {
            "schema": ledger.SCHEMA,
            "kind": KIND,
            "command": command(self.model, self.asked),
            "model": self.model,
            "dtype": "float32",
            "device": str(self.device.torch_device),
            "weight_bytes": sum(parameter.nbytes for parameter in self.module.parameters()),
            "environment": ledger.environment(),
            "asked": self.asked,
            "bandwidth": max(reading(self.device), copy_bandwidth(self.device)),
            "event_s": event_seconds(self.config),
            "finished": False,
            "parts": [ledger.entry(self.workload, {})],
        }

    @property
    def part(self) -> dict[str, Any]:
        """The one workload's entry."""
        return self.made["parts"][0]

    def row(self, name: str) -> dict[str, Any]:
        """The entry of a row, made where there is none."""
        return ledger.row_of(self.part, name)

    # ---- the work ------------------------------------------------------------------------------------------------

    def measure(self) -> dict[str, Any]:
        """Make the rows, run them in turn, look into each once; returns the ledger."""
        blocks = sum(-(-(len(r.prompt_ids) + (r.params.max_tokens or 0)) // BLOCK) + 1 for r in self.workload.requests)
        with TemporaryDirectory(prefix="minfer-bench-") as scratch:
            rows = Rows(
                self.module, self.model, self.folder, Path(scratch), self.device, self.asked["num_prompts"]
            ).all(blocks)
            contestants = self.load(chosen(rows, self.asked["only"]))
            try:
                self.run(contestants)
                self.look(contestants)
            finally:
                for contestant in contestants:
                    getattr(contestant, "close", lambda: None)()
        self.predict()
        self.made["finished"] = True
        self.save()
        return self.made

    def load(self, rows: list[Row]) -> list[Contestant]:
        """Those that can be made, with the most memory that making each took; the others are noted with a reason."""
        contestants: list[Contestant] = []
        for row in rows:
            entry = self.row(row.name)
            if absent := row.absent or entry.get("absent", ""):
                entry["absent"] = absent
                continue
            with self.console.status(f"loading {row.name}"), PeakMemory(self.device) as peak:
                made = self.tried(row.name, row.make)
            if made is not None:
                contestants.append(made)
                entry.setdefault("memory", {})["loading_bytes"] = peak.bytes
        self.save()
        return contestants

    def tried(self, name: str, work: Callable[[], Any]) -> Any:
        """What `work` gives; None if it cannot, and then the row says why."""
        try:
            return work()
        except (MinferError, RuntimeError) as error:
            self.row(name).update(samples=[], absent=f"failed: {error}")
            return None

    def run(self, contestants: list[Contestant]) -> None:
        """In turn; the ledger is saved after every run."""
        state = ledger.series(self.part, self.save)
        interleave(contestants, self.workload, self.asked["repeats"], self.console, state)
        state.keep()

    def look(self, contestants: list[Contestant]) -> None:
        """Once into each row: its parts under the profiler, its memory, its answers beside those of FP32."""
        guard = Guard(self.module, self.folder, self.device)
        for contestant in contestants:
            entry = self.row(contestant.name)
            if "absent" in entry or "figures" in entry:
                continue
            with self.console.status(f"looking into {contestant.name}"):
                entry["effective"] = contestant.effective()
                if isinstance(contestant, EngineContestant):
                    self._look_into(contestant, entry, guard)
                entry["figures"] = figures(ledger.runs(entry), self.workload.input_tokens)
            self.save()

    def _look_into(self, contestant: EngineContestant, entry: dict[str, Any], guard: Guard) -> None:
        engine: Any = contestant.engine
        with PeakMemory(self.device) as peak:
            contestant.run(brief(self.workload))
        pool = getattr(engine.cache, "pool", None)
        entry["memory"]["kv_bytes"] = engine.cache.nbytes if pool is None else pool.nbytes
        entry["memory"]["running_bytes"] = peak.bytes
        entry["anatomy"] = anatomy(contestant, self.workload, self.made["event_s"])
        entry["quality"] = guard.compare(engine)

    def predict(self) -> None:
        """What the cost model says of each row, if this machine was calibrated."""
        if (hardware := calibrated()) is None:
            self.console.print("minfer: nothing is predicted: calibrate this machine with minfer calibrate")
            return
        by_name = {variant.name: variant for variant in VARIANTS}
        for entry in self.part["rows"]:
            if (variant := by_name.get(entry["name"])) is None or "figures" not in entry:
                continue
            together = self.asked["num_prompts"] if variant.together else 1
            sample, _, _ = simulate(CostModel(variant.setup(self.config), hardware), self.workload, together)
            entry["predicted"] = {
                "output_throughput": sample.output_throughput,
                "median_ttft_ms": sample.ttft_ms,
                "median_tpot_ms": sample.tpot_ms,
            }


def chosen(rows: list[Row], only: list[str]) -> list[Row]:
    """Rows whose names begin with one of `only`; all where none is given. Raises `OptionsError` for a strange name."""
    for name in only:
        if not any(row.name.lower().startswith(name.lower()) for row in rows):
            raise OptionsError(f"--only {name!r} is no row: choose from {', '.join(row.name for row in rows)}")
    return [row for row in rows if not only or any(row.name.lower().startswith(name.lower()) for name in only)]


def command(model: str, asked: dict[str, Any]) -> str:
    """The command line that makes this table."""
    flags = [f"--{name.replace('_', '-')} {asked[name]}" for name in ("num_prompts", "input_len", "output_len")]
    flags += [f"--repeats {asked['repeats']}", f"--seed {asked['seed']}"]
    return " ".join(["minfer bench table -m", model, *flags, *(f"--only {json.dumps(o)}" for o in asked["only"])])
