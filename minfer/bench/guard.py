"""Guard: a row that is fast because it is wrong is no row: its answers and its probabilities beside those of FP32."""

from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from minfer.core.device import Device
from minfer.core.tokenizer import load_tokenizer
from minfer.phase3 import Engine
from minfer.phase6.quality import Sample, answers, common, divergence, log_probabilities

HELDOUT = Path(__file__).parents[1] / "assets" / "heldout.txt"
CHUNK, CHUNKS = 64, 8  # tokens that are scored after one another, and how often
PROMPTS, PROMPT, ANSWER = 6, 16, 8


class Guard:
    """The unquantised float32 model, and the text and prompts that others are compared with it on."""

    def __init__(self, module: nn.Module, folder: Path, device: Device) -> None:
        self.module, self.folder, self.device = module, folder, device

    @cached_property
    def reference(self) -> Any:
        """Phase 3 in float32: exact up to rounding, by tests."""
        return Engine(self.module, load_tokenizer(self.folder), Engine.Options(device=self.device))

    @cached_property
    def sample(self) -> Sample:
        """The beginning of the shipped text."""
        ids = self.reference.reader.encode(HELDOUT.read_text(encoding="utf-8"))
        width = min(CHUNK, self.reference.context)
        chunks = [ids[start : start + width] for start in range(0, CHUNKS * width, width)]
        answer = min(ANSWER, self.reference.context // 2)
        prompts = [chunk[: self.reference.context - answer][:PROMPT] for chunk in chunks[:PROMPTS]]
        return Sample([chunk for chunk in chunks if len(chunk) > 1], prompts, answer)

    @cached_property
    def probabilities(self) -> list[Tensor]:
        """Of each chunk, by FP32."""
        return [log_probabilities(self.reference, chunk) for chunk in self.sample.chunks]

    @cached_property
    def answers(self) -> list[list[int]]:
        """Of FP32."""
        return answers(self.reference, self.sample)

    def compare(self, engine: Any) -> dict[str, Any]:
        """`match`: tokens of greedy answers before the first that differs, of `of`; divergence in nats; perplexity."""
        if getattr(engine, "ranks", None) is not None:
            return {}  # a forward of the text alone is none that all ranks take part in
        lost = diverged = 0.0
        for chunk, theirs in zip(self.sample.chunks, self.probabilities, strict=True):
            ours = log_probabilities(engine, chunk)
            lost -= ours[range(len(ours)), chunk[1:]].sum().item()
            diverged += divergence(theirs, ours).sum().item()
        matches = [common(*pair) for pair in zip(answers(engine, self.sample), self.answers, strict=True)]
        return {
            "match": sum(matches) / len(matches),
            "of": self.sample.answer,
            "divergence": diverged / self.sample.scored,
            "perplexity": exp(lost / self.sample.scored),
        }
