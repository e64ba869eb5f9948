"""`minfer bench overlap`: phase 9 beside phase 8, which waits for each step's tokens before it launches the next."""

import copy
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from minfer.bench import workloads
from minfer.bench.contestants import EngineContestant, checked, engine_class
from minfer.bench.ledger import SCHEMA, entry, environment
from minfer.bench.runner import interleave
from minfer.bench.sample import Sample
from minfer.bench.timeline import StepCosts, idle_share, sayer, seconds, simulated
from minfer.bench.workloads import Workload
from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.hub import resolve
from minfer.phase2 import Engine, EngineOptions
from minfer.plots.timeline_figure import draw_timelines

BLOCKS = 256
DRAWN = 6  # tokens of the request whose steps are drawn


class Unwatched(EngineContestant):
    """An engine without stopwatches around its forwards: they wait for the device, so that nothing would overlap."""

    def __init__(self, phase: int, model: nn.Module, name: str, **options: Any) -> None:
        self.name = name
        self.engine = engine_class(phase)(model, None, engine_class(phase).Options(**options))

    def run(self, workload: Workload) -> Sample:
        """As before, but nothing is asked on the way."""
        engine = self.engine
        self.empty()
        asked = workload.requests
        start = engine.device.clock()
        sequences = engine.sequences([one.prompt_ids for one in asked], [one.params for one in asked])
        for _ in engine.run(sequences):
            pass
        engine.device.synchronize()
        times = [[at - start for at in sequence.timestamps.tokens] for sequence in sequences]
        return checked(Sample(times, engine.device.clock() - start), workload, self.name)


class Overlap:
    """Both engines, each with weights of its own, since they take their models apart."""

    def __init__(self, model: str, device: str, batch: int, tokens: int) -> None:
        place = Device.get(device)
        module = Engine.build_model(Checkpoint(resolve(model)), EngineOptions(device=place, dtype="float32"))
        self.model, self.config, self.device = model, module.config, place
        self.workload = workloads.decode(module.config.vocab_size, batch, new=tokens)  # type: ignore[union-attr, arg-type]
        self.options: dict[str, Any] = {"num_blocks": BLOCKS, "max_batch": batch, "device": place}
        self.contestants = [
            Unwatched(8, copy.deepcopy(module), "phase 8", **self.options),
            Unwatched(9, copy.deepcopy(module), "phase 9, overlapped", **self.options),
        ]
        self.module = module

    def measure(self, repeats: int, console: Console) -> dict[str, Any]:
        """The ledger of both, in turn."""
        parts = [entry(self.workload, interleave(self.contestants, self.workload, repeats, console))]
        return {
            "schema": SCHEMA,
            "command": f"minfer bench overlap -m {self.model} --repeats {repeats}",
            "model": self.model,
            "dtype": "float32",
            "device": str(self.device.torch_device),
            "weight_bytes": sum(parameter.nbytes for parameter in self.module.parameters()),
            "environment": environment(),
            "parts": parts,
        }

    def draw(self, path: Path) -> None:
        """Some steps of one request with and without overlap, by what they cost here, as they would lie on a card."""
        watched = EngineContestant(8, copy.deepcopy(self.module), **self.options)
        costs = StepCosts.of(watched, self.workload)
        timelines = {}
        for phase, name in ((8, "Phase 8: read, then launch"), (9, "Phase 9: launch, then read")):
            spans = simulated(phase, sayer(self.config), costs, DRAWN)
            said = f"{DRAWN} tokens in {1000 * seconds(spans):.1f} ms, device idle {100 * idle_share(spans):.0f} %"
            timelines[f"{name}: {said}"] = spans
        host = 1000 * (costs.launch + costs.commit)
        draw_timelines(
            timelines,
            path,
            f"{self.model}: a step's costs measured here (host {host:.2f} ms, forward {1000 * costs.forward:.2f} ms); "
            "how they lie beside each other on a card is simulated",
        )
