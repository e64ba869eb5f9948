"""Contestants: minfer's engines and their peers, each of which runs a workload and says when its tokens came."""

import importlib
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from minfer.bench.sample import Sample
from minfer.bench.workloads import Workload
from minfer.core.batch import ForwardBatch
from minfer.core.extras import require


class Contestant(Protocol):
    """Something that answers a workload's requests."""

    name: str

    def run(self, workload: Workload) -> Sample:
        """Answer all requests; every one must give as many tokens as it was asked for."""
        ...


class EngineContestant:
    """One phase's engine over a model that others may share; `facts` tell what it did besides."""

    def __init__(self, phase: int, model: nn.Module, name: str = "", **options: Any) -> None:
        base = importlib.import_module(f"minfer.phase{phase}").Engine
        self.name = name or f"phase {phase}"
        self.engine = _watched(base)(model, None, base.Options(**options))

    def run(self, workload: Workload) -> Sample:
        """Run the requests through `engine.run`, from arrival to the last token."""
        engine = self.engine
        engine.allocate()  # an empty cache: no run may profit from prefixes that the one before left
        engine.forward_seconds, engine.fed, usages = 0.0, 0, []
        start = engine.device.clock()
        sequences = engine.sequences(
            [request.prompt_ids for request in workload.requests], [request.params for request in workload.requests]
        )
        for _ in engine.run(sequences):
            if hasattr(engine, "kv_usage"):
                usages.append(engine.kv_usage())
        engine.device.synchronize()
        duration = engine.device.clock() - start
        facts = {"forward_s": engine.forward_seconds, "tokens_fed": float(engine.fed)}
        facts["host_share"] = 1 - engine.forward_seconds / duration
        if allocated := sum(usage.allocated for usage in usages):
            facts["kv_unused"] = 1 - sum(usage.held for usage in usages) / allocated
        times = [[at - start for at in sequence.timestamps.tokens] for sequence in sequences]
        return _checked(Sample(times, duration, facts), workload, self.name)


def _watched(base: Any) -> Any:
    """A subclass of an engine that adds up the time and the tokens of its forwards."""

    class Watched(base):
        forward_seconds = 0.0
        fed = 0

        def forward(self, batch: ForwardBatch) -> Tensor:
            self.device.synchronize()
            start = self.device.clock()
            logits = super().forward(batch)
            self.device.synchronize()
            self.forward_seconds += self.device.clock() - start
            self.fed += batch.input_ids.numel()
            return logits

    return Watched


class TransformersContestant:
    """`transformers` `generate` with its cache, in static batches as its users write them: left-padded, greedy."""

    def __init__(self, folder: Path, dtype: torch.dtype, batch: int = 1) -> None:
        transformers = require("transformers", "test", "measuring it beside minfer")
        transformers.logging.set_verbosity_error()
        self.transformers, self.batch = transformers, batch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self.name = f"transformers {transformers.__version__} generate" + (f", batches of {batch}" if batch > 1 else "")

    def run(self, workload: Workload) -> Sample:
        """Batches in order of arrival; each runs until the longest answer that one of its requests asked for."""
        start = time.perf_counter()
        times: list[list[float]] = []
        for first in range(0, len(workload.requests), self.batch):
            group = workload.requests[first : first + self.batch]
            wanted = [request.params.max_tokens or 0 for request in group]
            at = [moment - start for moment in self._generate([request.prompt_ids for request in group], max(wanted))]
            times += [at[:count] for count in wanted]
        return _checked(Sample(times, time.perf_counter() - start), workload, self.name)

    def _generate(self, prompts: list[list[int]], new: int) -> list[float]:
        """When each step's tokens were there."""
        width = max(len(prompt) for prompt in prompts)
        padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        moments: list[float] = []

        class Clock(self.transformers.StoppingCriteria):  # type: ignore[name-defined]
            def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
                moments.append(time.perf_counter())
                return torch.zeros(len(input_ids), dtype=torch.bool)

        with torch.inference_mode():
            self.model.generate(
                padded,
                attention_mask=mask,
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=self.transformers.StoppingCriteriaList([Clock()]),
            )
        return moments


def _checked(sample: Sample, workload: Workload, name: str) -> Sample:
    """A short or empty answer is a failure, never a fast success."""
    for number, (times, request) in enumerate(zip(sample.token_times, workload.requests, strict=True)):
        if len(times) != request.params.max_tokens:
            raise RuntimeError(f"{name}: request {number} gave {len(times)} tokens of {request.params.max_tokens}")
    return sample
