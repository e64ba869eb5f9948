"""Simulation: the real engines and their scheduler on a model that computes nothing and a clock that is prescribed.

What is predicted is a whole run, with its queues, padding and mixed steps: each step takes as long as the cost model
says (Vidur, arXiv 2405.05465, does the same with its own scheduler; here it is the very one that serves).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from minfer.bench.contestants import engine_class
from minfer.bench.sample import Sample
from minfer.bench.workloads import Workload
from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.device import CPU
from minfer.core.sequence import Sequence
from minfer.cost.cost_model import CostModel, Terms
from minfer.cost.formulas import Step

SCHEDULING = {1: 1, 2: 1, 3: 3, 4: 4}
"""The phase whose order of work a phase has; later ones have that of phase 5."""


class Simulated(CPU):
    """A device whose time passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        """The simulated time, in seconds."""
        return self.now

    def free_memory(self) -> int:
        """Enough for everything."""
        return 2**60


class Nothing(nn.Module):
    """A model of `config`'s vocabulary and context that answers zeros; its cache takes next to no memory."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        one = {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 1, "windows": (None,)}
        self.config = replace(config, **one)  # type: ignore[arg-type]
        self.register_parameter("weight", nn.Parameter(torch.zeros(1)))

    def forward(self, input_ids: Tensor, positions: Tensor, attention: Any, rows: Tensor) -> Tensor:
        """Zeros `(R, vocab)`."""
        return torch.zeros(1, self.config.vocab_size).expand(len(rows), -1)


def simulate(model: CostModel, workload: Workload, max_batch: int = 1) -> tuple[Sample, Terms, list[Step]]:
    """When the workload's tokens would come, the seconds of all steps by part, and the steps."""
    phase, device = SCHEDULING.get(model.setup.phase, 5), Simulated()
    options: dict[str, Any] = {"device": device}
    if phase >= 4:
        options["max_batch"] = max_batch
    if phase >= 5:
        options["num_blocks"] = sum(-(-_tokens(request) // 16) + 1 for request in workload.requests)
    base = engine_class(phase)
    engine = _planned(base, model)(Nothing(model.setup.config), None, base.Options(**options))
    sequences = engine.sequences([r.prompt_ids for r in workload.requests], [r.params for r in workload.requests])
    for _ in engine.run(sequences):
        pass
    stamps = [sequence.timestamps for sequence in sequences]
    waits = [one.scheduled or 0.0 for one in stamps]
    sample = Sample([list(one.tokens) for one in stamps], device.now, {"steps": len(engine.steps)}, waits)
    return sample, engine.terms, engine.steps


def _tokens(request: Any) -> int:
    return len(request.prompt_ids) + request.params.max_tokens


def _planned(base: Any, model: CostModel) -> Any:
    """A subclass of an engine that moves the clock by what each step would take."""

    class Planned(base):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.terms = Terms()
            self.steps: list[Step] = []

        def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
            batch = super().prepare(sequences)
            step = step_of(batch, sequences, getattr(self.options, "block_size", 0))
            took = model.step(step)
            self.steps.append(step)
            self.terms = self.terms + took
            self.device.now += took.total
            return batch

    return Planned


def step_of(batch: ForwardBatch, sequences: list[Sequence], block_size: int = 0) -> Step:
    """The sizes of a step that an engine has prepared; `block_size` of a paged cache, 0 for others."""
    if batch.input_ids.dim() == 2:  # padded to one width
        count, width = batch.input_ids.shape
        context = max(sequence.num_cached for sequence in sequences) + width
        longest = max(len(sequence.token_ids) for sequence in sequences)
        return Step((width,) * count, (min(context, longest),) * count, len(batch.rows))
    if not any(sequence.num_scheduled for sequence in sequences):  # without a cache: all tokens of the one sequence
        tokens = batch.input_ids.numel()
        return Step((tokens,), (tokens,), len(batch.rows))
    queries = [sequence.num_scheduled for sequence in sequences]
    ends = [sequence.num_cached + sequence.num_scheduled for sequence in sequences]
    if not block_size:
        return Step(tuple(queries), tuple(ends), len(batch.rows))
    return _paged(queries, ends, len(batch.rows), block_size)


def _paged(queries: list[int], ends: list[int], rows: int, block_size: int) -> Step:
    """Single tokens see the blocks of the longest of them; chunks that are not the first see their own, gathered."""
    blocks = [-(-end // block_size) * block_size for end in ends]
    widest = max((size for size, query in zip(blocks, queries, strict=True) if query == 1), default=0)
    contexts, gathered = [], 0
    for query, end, size in zip(queries, ends, blocks, strict=True):
        seen = widest if query == 1 else end if query == end else size
        contexts.append(seen)
        gathered += 0 if query == end and query > 1 else seen
    return Step(tuple(queries), tuple(contexts), rows, gathered)
