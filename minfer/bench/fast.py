"""`minfer bench fast`: quantised and fused engines beside `transformers` and llama.cpp, on the same weights."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import nn

from minfer.bench import gguf_file, workloads
from minfer.bench.contestants import Contestant, EngineContestant
from minfer.bench.ledger import SCHEMA, entry, environment
from minfer.bench.llama_cpp_peer import LlamaCppContestant
from minfer.bench.runner import interleave
from minfer.bench.transformers_peer import TransformersContestant
from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.hub import resolve
from minfer.phase2 import Engine, EngineOptions

NEW = {1: 64, 16: 32, 32: 32}  # tokens to decode, by batch size: a step of many rows takes long enough to be timed
POOL = 512  # blocks of 16 tokens: more than 32 requests of the longest workload take


@dataclass(frozen=True)
class Row:
    """A contestant to be made; or, with a reason, one that cannot run here."""

    name: str
    make: Callable[[], Contestant]
    absent: str = ""


def measure(model: str, device: str, repeats: int, only: list[str], console: Console) -> dict[str, Any]:
    """Run the rows and workloads that `only` names (none: all) on float32 weights; return the ledger."""
    folder, place = resolve(model), Device.get(device)
    module = Engine.build_model(Checkpoint(folder), EngineOptions(device=place, dtype="float32"))
    with TemporaryDirectory(prefix="minfer-bench-") as scratch:
        rows, tasks = chosen(Rows(module, folder, Path(scratch), place).all(), all_workloads(module), only)
        absent = {row.name: row.absent for row in rows if row.absent}
        contestants = [row.make() for row in rows if not row.absent]
        parts = [entry(task, interleave(contestants, task, repeats, console), absent) for task in tasks]
        ran = {contestant.name: contestant.effective() for contestant in contestants}
    return {
        "schema": SCHEMA,
        "command": " ".join(["minfer bench fast -m", model, f"--repeats {repeats}", *(f"--only '{o}'" for o in only)]),
        "model": model,
        "dtype": "float32",
        "device": str(place.torch_device),
        "weight_bytes": sum(parameter.nbytes for parameter in module.parameters()),
        "environment": environment(),
        "parts": parts,
        "ran": ran,
    }


def all_workloads(module: nn.Module) -> list[workloads.Workload]:
    """Decoding at each batch size, then a long prompt: 512 tokens, or what the model's context holds."""
    config: Any = module.config
    made = [workloads.decode(config.vocab_size, count, new=new) for count, new in NEW.items()]
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


class Rows:
    """Who takes part. Engines that change the model they are given get a copy of it."""

    def __init__(self, module: nn.Module, folder: Path, scratch: Path, device: Device) -> None:
        self.module, self.folder, self.scratch, self.device = module, folder, scratch, device

    def all(self) -> list[Row]:
        """In the order of the table."""
        bfloat16 = torch.bfloat16
        no_card = "" if self.device.torch_device.type == "cuda" else "no CUDA device"
        return [
            self.transformers(),
            *(self.llama_cpp(kind) for kind in gguf_file.KINDS),
            Row("phase 5 fp32", lambda: self.engine(5, "phase 5 fp32")),
            self.changed("phase 7 fp32", 7),
            self.changed("phase 7 fp16", 7, quantization="fp16", quantize_head=True),
            self.changed("phase 7 int8", 7, bfloat16, quantization="int8"),
            self.changed("phase 7 int8 rows", 7, quantization="int8", quantize_rows=True, quantize_head=True),
            self.changed("phase 7 int4", 7, bfloat16, quantization="int4", group_size=32),
            self.changed("phase 8 fp32", 8, absent=no_card),
        ]

    def transformers(self) -> Row:
        """`generate` on all requests of a workload at once."""
        name = "transformers fp32"
        absent = "" if find_spec("transformers") else "not installed: pip install transformers"
        where, batch = self.device.torch_device, max(NEW)
        return Row(name, lambda: TransformersContestant(self.folder, torch.float32, batch, name, where), absent)

    def llama_cpp(self, kind: str) -> Row:
        """llama.cpp on weights of one kind."""
        absent = gguf_file.why_not(self.module.config, kind)  # type: ignore[arg-type]
        if self.device.torch_device.type != "cpu":
            absent = f"it is measured on the CPU only, not on {self.device.torch_device}"
        if find_spec("llama_cpp") is None:
            absent = "not installed: pip install llama-cpp-python"
        return Row(f"llama.cpp {kind}", lambda: LlamaCppContestant(self.module, kind, self.scratch), absent)

    def changed(
        self, name: str, phase: int, dtype: torch.dtype = torch.float32, absent: str = "", **options: Any
    ) -> Row:
        """A phase whose engine takes its model apart, on weights held in `dtype` before it does."""
        return Row(name, lambda: self.engine(phase, name, copy.deepcopy(self.module).to(dtype), **options), absent)

    def engine(self, phase: int, name: str, module: nn.Module | None = None, **options: Any) -> EngineContestant:
        """An engine with room for every workload."""
        return EngineContestant(phase, module or self.module, name, max_batch=max(NEW), num_blocks=POOL, **options)
