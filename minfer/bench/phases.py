"""`minfer bench phases`: each phase beside the one before and beside `transformers`, on the workload it is about."""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from minfer.bench import workloads
from minfer.bench.cold_start import first_token_seconds, loading_peak
from minfer.bench.contestants import Contestant, EngineContestant
from minfer.bench.ledger import SCHEMA, entry, environment
from minfer.bench.runner import interleave
from minfer.bench.shares import shares
from minfer.bench.transformers_peer import TransformersContestant
from minfer.core.checkpoint import Checkpoint
from minfer.core.hub import resolve
from minfer.phase2 import Engine, EngineOptions


def measure(model: str, dtype: str, repeats: int, peers: bool, console: Console) -> dict[str, Any]:
    """Run all workloads on `model` and return the ledger."""
    folder = resolve(model)
    options = EngineOptions(device="cpu", dtype=dtype)
    module = Engine.build_model(Checkpoint(folder), options)
    made = Bench(module, folder, peers)
    parts = []
    for workload, contestants in made.parts():
        parts.append(entry(workload, interleave(contestants, workload, repeats, console)))
    return {
        "schema": SCHEMA,
        "command": f"minfer bench phases -m {model} --dtype {dtype} --repeats {repeats}",
        "model": model,
        "dtype": dtype,
        "weight_bytes": sum(parameter.nbytes for parameter in module.parameters()),
        "environment": environment(),
        "parts": parts,
        "shares": made.shares(),
        "loading": loading_peak(folder, dtype),
        "cold_start_s": [first_token_seconds() for _ in range(repeats)],
    }


class Bench:
    """Who takes part in what. All engines share one copy of the weights."""

    def __init__(self, module: nn.Module, folder: Path, peers: bool) -> None:
        self.module, self.folder, self.peers = module, folder, peers
        self.vocab_size: int = module.config.vocab_size  # type: ignore[union-attr, assignment]

    def parts(self) -> Iterator[tuple[workloads.Workload, Items[Contestant]]]:
        """Workload and contestants, in the order of the table; each part's are made when its turn comes."""
        yield workloads.single(self.vocab_size), [*self.engines(1, 3, 5), *self.peer(1)]
        yield workloads.mixed(self.vocab_size), [*self.engines(4, 5), *self.peer(8), *self.engines(3)]
        yield workloads.shared_prefix(self.vocab_size), self.with_and_without_sharing()

    def shares(self) -> dict[str, Any]:
        """Where the forward's time goes when many requests run together."""
        workload = workloads.mixed(self.vocab_size)
        rows = {engine.name: shares(engine, workload) for engine in self.engines(4, 5)}
        return {"workload": workload.name, "rows": rows}

    def engines(self, *phases: int) -> list[EngineContestant]:
        """The engines of some phases."""
        return [EngineContestant(phase, self.module) for phase in phases]

    def with_and_without_sharing(self) -> list[EngineContestant]:
        """Phase 5 twice; a run shares prefixes only within itself."""
        alone = EngineContestant(5, self.module, "phase 5, not sharing", share_prefixes=False)
        return [alone, EngineContestant(5, self.module, "phase 5, sharing prefixes")]

    def peer(self, batch: int) -> list[TransformersContestant]:
        """`transformers`, unless peers are not wanted."""
        if not self.peers or find_spec("transformers") is None:
            return []
        return [TransformersContestant(self.folder, next(self.module.parameters()).dtype, batch)]
