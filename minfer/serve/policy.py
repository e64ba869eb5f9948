"""Policy: whether the next step is to be large, for throughput, or small, for latency."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from minfer.core.sequence import Status


class Aim(str, Enum):
    """What `--policy` says."""

    THROUGHPUT = "throughput"  # the engine's whole batch and token budget
    LATENCY = "latency"  # few rows, and prompts in small pieces, so that a step is short
    AUTO = "auto"  # small as long as few are here, large under load

    __str__ = str.__str__


@dataclass(frozen=True)
class Policy:
    """Sets the scheduler's limits before each step. What a request says does not depend on it, only when.

    A small step has at most `rows` requests, and `prompt_tokens` tokens of prompts beside those that decode: nobody's
    next token waits for a long prompt of another. Where nobody decodes, there is nobody to wait, and a prompt is
    computed in whole.
    """

    aim: Aim = Aim.AUTO
    rows: int = 8
    prompt_tokens: int = 64

    def is_small(self, requests: int) -> bool:
        """Whether a step with so many requests in hand is to be small."""
        return self.aim is Aim.LATENCY or (self.aim is Aim.AUTO and requests <= self.rows)

    def steer(self, engine: Any) -> None:
        """Set the limits of the engine's next step; from the thread that steps."""
        scheduler = engine.scheduler
        if not self.is_small(in_hand(engine)):
            scheduler.restrict(scheduler.most.max_batch, scheduler.most.token_budget)
            return
        decoding = any(sequence.output_ids for sequence in scheduler.running if sequence.status is Status.RUNNING)
        prompt_tokens = self.prompt_tokens if decoding else scheduler.most.token_budget
        scheduler.restrict(self.rows, prompt_tokens)


def in_hand(engine: Any) -> int:
    """Requests of an engine, running and waiting; not those that it has given to replicas."""
    return len(engine.scheduler.running) + len(engine.scheduler.waiting) + len(engine.inbox)
