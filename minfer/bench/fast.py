"""`minfer bench fast`: quantised and fused engines beside `transformers` and llama.cpp, on the same weights."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import nn

from minfer.bench import gguf_file, ledger, workloads
from minfer.bench.anatomy import event_seconds
from minfer.bench.contestants import Contestant, EngineContestant
from minfer.bench.llama_cpp_peer import LlamaCppContestant
from minfer.bench.runner import interleave
from minfer.bench.step_parts import Rates, parts_of_a_step
from minfer.bench.transformers_peer import TransformersContestant
from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.hub import resolve
from minfer.phase2 import Engine, EngineOptions

DECODE = {1: (32, 48), 16: (16, 24), 32: (16, 16)}
"""By batch size, tokens in and out of each request: few where a step is long, so that all of it takes minutes."""

POOL = 512  # blocks of 16 tokens: more than 32 requests of the longest workload take


@dataclass(frozen=True)
class Row:
    """A contestant to be made; or, with a reason, one that cannot run here."""

    name: str
    make: Callable[[], Contestant]
    absent: str = ""


class FastBench:
    """The rows and workloads that `only` names (none: all) on float32 weights, and the ledger that grows with them."""

    def __init__(
        self, model: str, device: str, repeats: int, only: list[str], out: Path | None, console: Console
    ) -> None:
        self.model, self.device, self.repeats, self.only = model, Device.get(device), repeats, only
        self.folder, self.console = resolve(model), console
        self.module = Engine.build_model(Checkpoint(self.folder), EngineOptions(device=self.device, dtype="float32"))
        self.made = ledger.resumed(out, self.command, console) or self._begun()
        self.save = partial(ledger.save, out, self.made)

    @property
    def command(self) -> str:
        """The command line that makes this ledger."""
        named = [f"--only '{name}'" for name in self.only]
        return " ".join(["minfer bench fast -m", self.model, f"--repeats {self.repeats}", *named])

    def _begun(self) -> dict[str, Any]:
        return {
            "schema": ledger.SCHEMA,
            "command": self.command,
            "model": self.model,
            "dtype": "float32",
            "device": str(self.device.torch_device),
            "weight_bytes": sum(parameter.nbytes for parameter in self.module.parameters()),
            "environment": ledger.environment(),
            "finished": False,
            "parts": [],
            "ran": {},
        }

    def measure(self) -> dict[str, Any]:
        """Run what is missing; returns the ledger."""
        with TemporaryDirectory(prefix="minfer-bench-") as scratch:
            rows = Rows(self.module, self.folder, Path(scratch), self.device).all()
            rows, tasks = chosen(rows, all_workloads(self.module), self.only)
            contestants = [self.load(row) for row in rows if not row.absent]
            parts = [self.part(task, rows) for task in tasks]
            for task, part in zip(tasks, parts, strict=True):
                self.run(contestants, task, part)
            for task, part in zip(tasks, parts, strict=True):
                self.look(contestants, task, part)
        self.made["ran"] = {contestant.name: contestant.effective() for contestant in contestants}
        self.made["finished"] = True
        self.save()
        return self.made

    def load(self, row: Row) -> Contestant:
        """The contestant of a row."""
        with self.console.status(f"loading {row.name}"):
            return row.make()

    def part(self, task: workloads.Workload, rows: list[Row]) -> dict[str, Any]:
        """The workload's part of the ledger, made where there is none."""
        parts: list[dict[str, Any]] = self.made["parts"]
        found = next((part for part in parts if part["workload"] == task.name), None)
        if found is None:
            absent = {row.name: row.absent for row in rows if row.absent}
            found = ledger.entry(task, {row.name: [] for row in rows if not row.absent}, absent)
            parts.append(found)
        return found

    def run(self, contestants: list[Contestant], task: workloads.Workload, part: dict[str, Any]) -> None:
        """One workload, in turn; the ledger is saved after every run."""
        series = ledger.series(part, self.save)
        interleave(contestants, task, self.repeats, self.console, series)
        series.keep()

    def look(self, contestants: list[Contestant], task: workloads.Workload, part: dict[str, Any]) -> None:
        """Once into a step of each engine."""
        if "event_s" not in self.made:
            self.made["event_s"] = event_seconds(self.module.config)  # type: ignore[arg-type]
        if "rates" not in self.made:
            self.made["rates"] = asdict(Rates.of(self.device))
        for contestant in contestants:
            row = ledger.row_of(part, contestant.name)
            if isinstance(contestant, EngineContestant) and row["samples"] and "step" not in row:
                with self.console.status(f"{task.name}: looking into {contestant.name}"):
                    row["step"] = parts_of_a_step(
                        contestant, task, ledger.runs(row), self.made["event_s"], Rates(**self.made["rates"])
                    )
                self.save()


def all_workloads(module: nn.Module) -> list[workloads.Workload]:
    """Decoding at each batch size, then a long prompt: 512 tokens, or what the model's context holds."""
    config: Any = module.config
    made = [workloads.decode(config.vocab_size, count, *lengths) for count, lengths in DECODE.items()]
    return [*made, workloads.prefill(config.vocab_size, min(512, config.context - 1))]


def chosen(
    rows: list[Row], tasks: list[workloads.Workload], only: list[str]
) -> tuple[list[Row], list[workloads.Workload]]:
    """Rows that begin with one of the names, and workloads of that name; all where none is named.

    Raises `OptionsError` for a name that is neither.
    """
    for name in only:
        if not any(row.name.startswith(name) for row in rows) and all(task.name != name for task in tasks):
            known = ", ".join([*(row.name for row in rows), *(task.name for task in tasks)])
            raise OptionsError(f"--only {name!r} is neither a row nor a workload: choose from {known}")
    some_rows = [row for row in rows if any(row.name.startswith(name) for name in only)]
    return some_rows or rows, [task for task in tasks if task.name in only] or tasks


def llama_cpp_row(module: nn.Module, kind: str, scratch: Path, device: Device) -> Row:
    """llama.cpp on a module's weights, as one kind of GGUF that is written into `scratch`."""
    absent = gguf_file.why_not(module.config, kind)  # type: ignore[arg-type]
    if device.torch_device.type != "cpu":
        absent = f"it is measured on the CPU only, not on {device.torch_device}"
    if find_spec("llama_cpp") is None:
        absent = "not installed: pip install llama-cpp-python"
    return Row(f"llama.cpp {kind}", lambda: LlamaCppContestant(module, kind, scratch), absent)


class Rows:
    """Who takes part. Engines that change the model they are given get a copy of it."""

    def __init__(self, module: nn.Module, folder: Path, scratch: Path, device: Device) -> None:
        self.module, self.folder, self.scratch, self.device = module, folder, scratch, device

    def all(self) -> list[Row]:
        """In the order of the table. Where weights are quantised the head's are too: llama.cpp's files have it so."""
        bfloat16 = torch.bfloat16
        no_card = "" if self.device.torch_device.type == "cuda" else "no CUDA device"
        return [
            self.transformers(),
            *(self.llama_cpp(kind) for kind in gguf_file.KINDS),
            Row("phase 5 fp32", lambda: self.engine(5, "phase 5 fp32")),
            self.changed("phase 7 fp32", 7),
            self.changed("phase 7 fp16", 7, quantization="fp16", quantize_head=True),
            self.changed("phase 7 int8", 7, bfloat16, quantization="int8", quantize_head=True),
            self.changed("phase 7 int8 rows", 7, quantization="int8", quantize_rows=True, quantize_head=True),
            self.changed("phase 7 int4", 7, bfloat16, quantization="int4", group_size=32, quantize_head=True),
            self.changed("phase 8 fp32", 8, absent=no_card),
        ]

    def transformers(self) -> Row:
        """`generate` on all requests of a workload at once."""
        name = "transformers fp32"
        absent = "" if find_spec("transformers") else "not installed: pip install transformers"
        where, batch = self.device.torch_device, max(DECODE)
        return Row(name, lambda: TransformersContestant(self.folder, torch.float32, batch, name, where), absent)

    def llama_cpp(self, kind: str) -> Row:
        """llama.cpp on weights of one kind."""
        return llama_cpp_row(self.module, kind, self.scratch, self.device)

    def changed(
        self, name: str, phase: int, dtype: torch.dtype = torch.float32, absent: str = "", **options: Any
    ) -> Row:
        """A phase whose engine takes its model apart, on weights held in `dtype` before it does."""
        return Row(name, lambda: self.engine(phase, name, copy.deepcopy(self.module).to(dtype), **options), absent)

    def engine(self, phase: int, name: str, module: nn.Module | None = None, **options: Any) -> EngineContestant:
        """An engine with room for every workload."""
        return EngineContestant(phase, module or self.module, name, max_batch=max(DECODE), num_blocks=POOL, **options)
