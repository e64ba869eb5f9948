"""Contestants: minfer's engines and their peers, each of which runs a workload and says when its tokens came."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from minfer.bench.sample import Sample
from minfer.bench.workloads import Workload
from minfer.core.batch import ForwardBatch


class Contestant(Protocol):
    """Something that answers a workload's requests."""

    name: str

    def run(self, workload: Workload) -> Sample:
        """Answer all requests; every one must give as many tokens as it was asked for."""
        ...

    def effective(self) -> dict[str, Any]:
        """What really ran: the bytes of the weights, and in words the kernels and what was compiled."""
        ...


def engine_class(phase: int) -> Any:
    """The `Engine` of a phase, which may be newer than the phases that the command line offers."""
    return importlib.import_module(f"minfer.phase{phase}").Engine


class EngineContestant:
    """One phase's engine over a model that others may share; `facts` tell what it did besides."""

    def __init__(self, phase: int, model: nn.Module, name: str = "", **options: Any) -> None:
        base = engine_class(phase)
        self.name = name or f"phase {phase}"
        self.engine = watched(base)(model, None, base.Options(**options))

    def run(self, workload: Workload) -> Sample:
        """Run the requests through `engine.run`, from arrival to the last token."""
        engine = self.engine
        self.empty()
        engine.forward_seconds, engine.fed, engine.forwards, usages = 0.0, 0, 0, []
        with self.at_work(), self.clocked() as parts:
            start = engine.device.clock()
            sequences = engine.sequences(
                [request.prompt_ids for request in workload.requests], [request.params for request in workload.requests]
            )
            for _ in engine.run(sequences):
                if hasattr(engine, "kv_usage"):
                    usages.append(engine.kv_usage())
            engine.device.synchronize()
            duration = engine.device.clock() - start
        facts = {"forward_s": engine.forward_seconds, "tokens_fed": float(engine.fed), "steps": float(engine.forwards)}
        facts |= {"host_share": 1 - engine.forward_seconds / duration, **parts}
        if allocated := sum(usage.allocated for usage in usages):
            facts["kv_unused"] = 1 - sum(usage.held for usage in usages) / allocated
        times = [[at - start for at in sequence.timestamps.tokens] for sequence in sequences]
        waits = [(sequence.timestamps.scheduled or start) - start for sequence in sequences]
        return checked(Sample(times, duration, facts, waits), workload, self.name)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Entered while requests run."""
        yield

    @contextmanager
    def clocked(self) -> Iterator[dict[str, float]]:
        """Entered while requests run; more facts, which are there afterwards."""
        yield {}

    def empty(self) -> None:
        """An empty cache: no run may profit from prefixes that the one before left."""
        self.engine.allocate()

    def effective(self) -> dict[str, Any]:
        """What the engine says of itself, as far as its phase does."""
        made: dict[str, Any] = {"weight_bytes": weight_bytes(self.engine.model)}
        made["dtype"] = str(self.engine.dtype).removeprefix("torch.")
        if hasattr(self.engine, "compilation"):
            made["compiled"] = str(self.engine.compilation)
        if kernels := getattr(self.engine, "kernels", None):
            made["kernels"] = in_words(kernels)
        return made


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers, each once, and of weights packed into tensors or opaque objects."""
    held: list[Tensor] = [*model.parameters(), *model.buffers()]
    parts: list[Any] = list(model.modules())
    held += [part.packed for part in parts if isinstance(getattr(part, "packed", None), Tensor)]
    opaque = sum(part.kernel.opaque_bytes(part) for part in parts if hasattr(part, "kernel"))
    return opaque + sum(tensor.numel() * tensor.element_size() for tensor in {id(one): one for one in held}.values())


def in_words(kernels: dict[str, Any]) -> str:
    """Phase 6's kernels with their share of the calls: "fbgemm int8 97 %, dequantize 3 %"."""
    calls = {name: use.ran.total() for name, use in kernels.items() if use.ran}
    shares = [f"{name} {100 * count / sum(calls.values()):.0f} %" for name, count in calls.items()]
    return ", ".join(shares)


def watched(base: Any) -> Any:
    """A subclass of an engine that adds up the time and the tokens of its forwards.

    An engine that launches a step before the last one is done is not waited for: its forwards are then launches only.
    """
    overlaps = hasattr(base, "overlap_usage")

    class Watched(base):
        forward_seconds = 0.0
        fed = forwards = 0

        def forward(self, batch: ForwardBatch) -> Tensor:
            self.wait()
            start = self.device.clock()
            logits = super().forward(batch)
            self.wait()
            self.forward_seconds += self.device.clock() - start
            self.fed += batch.input_ids.numel()
            self.forwards += 1
            return logits

        def wait(self) -> None:
            if not overlaps:
                self.device.synchronize()

    return Watched


def checked(sample: Sample, workload: Workload, name: str) -> Sample:
    """A short or empty answer is a failure, never a fast success."""
    for number, (times, request) in enumerate(zip(sample.token_times, workload.requests, strict=True)):
        if len(times) != request.params.max_tokens:
            raise RuntimeError(f"{name}: request {number} gave {len(times)} tokens of {request.params.max_tokens}")
    return sample
