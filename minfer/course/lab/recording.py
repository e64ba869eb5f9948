"""Recording: a subclass of an engine that keeps every step's logits by wrapping hooks; the engine has no callback."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minfer.core.sequence import Completion, Sequence


@dataclass
class Record:
    """What an engine was seen to do."""

    logits: dict[int, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    """Sequence id -> the row of logits, float64 `(vocab,)`, that each of its tokens was drawn from."""
    dtypes: set[torch.dtype] = field(default_factory=set)
    made: list[Sequence] = field(default_factory=list)
    """Every sequence, in the order of its making."""
    forwarded: list[int] = field(default_factory=list)
    """How many tokens each call of the model computed."""
    grad: set[bool] = field(default_factory=set)
    """Whether gradients were on when the model was called."""
    training: set[bool] = field(default_factory=set)
    """Whether the model was in training mode (dropout on) when it was called."""

    def rows(self, sequence: Sequence, width: int) -> np.ndarray:
        """The logits that the sequence's tokens were drawn from, `(tokens, width)`; of draws thrown away, none."""
        rows = self.logits[sequence.id][: len(sequence.output_ids)]
        return torch.stack(rows).cpu().numpy() if rows else np.empty((0, width))


@dataclass
class Run:
    """One request, what came of it, and the logits `(steps, vocab)` that its tokens were drawn from."""

    completion: Completion
    logits: np.ndarray

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens that went in."""
        return self.completion.prompt_ids

    @property
    def token_ids(self) -> list[int]:
        """The tokens that came out."""
        return self.completion.token_ids


def recording(engine_cls: type) -> type:
    """`engine_cls` with a `record`. Its own hooks run unchanged."""

    class Recording(engine_cls):
        def __init__(self, model: nn.Module, *rest: Any, **named: Any) -> None:
            self.record = Record()
            watch_forwards(model, self.record)
            super().__init__(model, *rest, **named)

        def sequences(self, *prompts: Any, **named: Any) -> list[Sequence]:
            made = super().sequences(*prompts, **named)
            self.record.made += made
            return made

        def sample(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
            self.record.dtypes.add(logits.dtype)
            for row, sequence in zip(logits.detach().to(torch.float64, copy=True), sequences, strict=False):
                self.record.logits[sequence.id].append(row)
            return super().sample(logits, sequences)

    Recording.__name__ = Recording.__qualname__ = engine_cls.__name__
    return Recording


def watch_forwards(model: nn.Module, record: Record) -> None:
    """Note each call of the model where its tokens come in: at the embedding, or at the model if it has none."""

    def note(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        input_ids = args[0] if args else next(iter(named.values()))
        record.forwarded.append(input_ids.numel())
        record.grad.add(torch.is_grad_enabled())
        record.training.add(model.training)

    entry = next((module for module in model.modules() if isinstance(module, nn.Embedding)), model)
    entry.register_forward_pre_hook(note, with_kwargs=True)
