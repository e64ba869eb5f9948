"""What host and device do in some steps, overlapped or not: an engine's own order of work, on a clock that is set.

The costs of a step are measured where the engine runs; how they lie beside each other on a card is simulated, since a
CPU has nothing beside its host.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minfer.bench.contestants import EngineContestant, engine_class
from minfer.bench.workloads import Workload
from minfer.core.params import SamplingParams
from minfer.core.sequence import Sequence
from minfer.course.lab.scripted import Scripted
from minfer.course.machines.clocks import Costly, ReadsWait
from minfer.course.machines.timeline import MODEL, Span, TimelineDevice

COPY_SHARE = 0.05  # of a forward: what the copy of a few ids is drawn as; it takes microseconds


@dataclass(frozen=True)
class StepCosts:
    """Seconds of one decode step: the host's before and after it waits for the device, and the forward's."""

    launch: float
    forward: float
    commit: float

    @classmethod
    def of(cls, contestant: EngineContestant, workload: Workload) -> "StepCosts":
        """Measured over a run; prompts are in it, so let the workload decode much."""
        spent = _timed_commits(contestant.engine)
        facts = contestant.run(workload)
        steps = facts.facts["steps"]
        forward = facts.facts["forward_s"] / steps
        commit = sum(spent) / steps
        return cls(max(0.0, facts.duration / steps - forward - commit), forward, commit)


def _timed_commits(engine: Any) -> list[float]:
    """The seconds of each commit of an engine from now on."""
    commit, spent = engine.commit, []

    def timed(sequences: list[Sequence], token_ids: Tensor) -> None:
        start = engine.device.clock()
        commit(sequences, token_ids)
        spent.append(engine.device.clock() - start)

    engine.commit = timed
    return spent


def simulated(phase: int, model: Scripted, costs: StepCosts, tokens: int) -> list[Span]:
    """What the phase's engine does to answer one request with so many tokens, if its steps cost that."""
    device = TimelineDevice(costs.forward * COPY_SHARE)
    base: Any = engine_class(phase)

    class Paced(base):
        def launch(self, sequences: list[Sequence]) -> Any:
            device.work("launch", costs.launch)
            return super().launch(sequences)

        def commit(self, sequences: list[Sequence], token_ids: Tensor) -> None:
            super().commit(sequences, token_ids)
            device.work("commit", costs.commit)

    options = base.Options(device=device, num_blocks=8, graph_batch=0, max_batch=1)
    engine = Paced(Costly(model, device, [costs.forward]), None, options)
    with ReadsWait(device):
        engine.generate([[1, 2, 3]], SamplingParams(max_tokens=tokens, ignore_eos=True))
    return device.spans


def seconds(spans: list[Span]) -> float:
    """From the first thing that was done to the last."""
    return max(span.end for span in spans) - min(span.start for span in spans)


def idle_share(spans: list[Span]) -> float:
    """The share of the time between its first and its last work in which the device had nothing to do."""
    own = [span for span in spans if span.lane == MODEL]
    whole = own[-1].end - own[0].start
    return 1 - sum(span.end - span.start for span in own) / whole if whole else 0.0


def sayer(config: Any) -> Scripted:
    """A model of no size that says the same token over and over."""
    return Scripted(config, torch.full((config.context,), 5).tolist())
