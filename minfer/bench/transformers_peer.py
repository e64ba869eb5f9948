"""`transformers` as a contestant: `generate` with its cache, as its users write it."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minfer.bench.contestants import checked
from minfer.bench.sample import Sample
from minfer.bench.workloads import Workload
from minfer.core.extras import require

CPU = torch.device("cpu")


class TransformersContestant:
    """`transformers` `generate` with its cache, in static batches as its users write them: left-padded, greedy."""

    def __init__(
        self, folder: Path, dtype: torch.dtype, batch: int = 1, name: str = "", device: torch.device = CPU
    ) -> None:
        transformers = require("transformers", "test", "measuring it beside minfer")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.transformers, self.batch = transformers, batch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.version = f"transformers {transformers.__version__} generate"
        self.name = name or self.version + (f", batches of {batch}" if batch > 1 else "")

    def run(self, workload: Workload) -> Sample:
        """Batches in order of arrival; each runs until the longest answer that one of its requests asked for."""
        start = time.perf_counter()
        times: list[list[float]] = []
        for first in range(0, len(workload.requests), self.batch):
            group = workload.requests[first : first + self.batch]
            wanted = [request.params.max_tokens or 0 for request in group]
            at = [moment - start for moment in self._generate([request.prompt_ids for request in group], max(wanted))]
            times += [at[:count] for count in wanted]
        return checked(Sample(times, time.perf_counter() - start), workload, self.name)

    def effective(self) -> dict[str, Any]:
        """The bytes of the weights; what runs is the library's own."""
        return {"weight_bytes": sum(weight.nbytes for weight in self.model.parameters()), "kernels": self.version}

    def _generate(self, prompts: list[list[int]], new: int) -> list[float]:
        """When each step's tokens were there."""
        width = max(len(prompt) for prompt in prompts)
        padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        moments: list[float] = []

        class Clock(self.transformers.StoppingCriteria):  # type: ignore[name-defined]
            def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
                moments.append(time.perf_counter())
                return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

        with torch.inference_mode():
            self.model.generate(
                padded.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=self.transformers.StoppingCriteriaList([Clock()]),
            )
        return moments
