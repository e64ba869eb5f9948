"""Real steps: an engine's own, over requests that make it meet many sizes, each step with what its parts took.

    prompts     one after another, of growing length
    dwindling   requests that begin together and leave one by one: some steps of each number of rows
    wide        some requests whose contexts are long
    many        short prompts at once: many rows of logits

None of them is a step that `minfer calibrate --check` compares with its prediction.
"""

import random
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

from minfer.bench.contestants import EngineContestant
from minfer.bench.part_clock import PartClock
from minfer.bench.simulation import step_of
from minfer.core.batch import ForwardBatch
from minfer.core.params import SamplingParams
from minfer.core.sequence import Sequence
from minfer.cost.formulas import Step

BATCH, EACH, SHORT = 16, 3, 24  # requests that dwindle; steps until the next one leaves; tokens of their prompts
PROMPTS = (20, 32, 48, 96, 192, 384)
WIDE = (8, 160)  # requests, and tokens of their prompts
MANY = (32, 4)
LAST = 4  # steps that those two decode
OPTIONS = {"max_batch": 32, "token_budget": 2048, "share_prefixes": False}
"""Of an engine that takes each batch at once, and computes every prompt."""


@dataclass(frozen=True)
class RealStep:
    """One step: its sizes, its seconds in all and within the forward, and those of its parts."""

    sizes: Step
    seconds: float
    forward: float
    parts: dict[str, float]

    @property
    def beside(self) -> float:
        """Seconds of the forward beside the other parts: all other operators, and what calling takes."""
        return self.forward - sum(seconds for part, seconds in self.parts.items() if part != "others")

    @property
    def host(self) -> float:
        """Seconds outside of the forward."""
        return self.seconds - self.forward


class RealSteps:
    """Those of one engine of phase 5 or later, made with `OPTIONS` and a pool of `blocks`."""

    def __init__(self, contestant: EngineContestant) -> None:
        self.contestant = contestant
        self.engine = contestant.engine
        self.engine.__class__ = sized(type(self.engine))
        self.clock = PartClock(self.engine)
        self.draw = random.Random(0)

    def all(self) -> list[RealStep]:
        """Once through all of them, but for what the model's context does not hold."""
        with self.contestant.at_work(), self.clock:
            batches = batches_within(self.engine.context)
            for prompt in batches[: len(PROMPTS)]:
                self.together(prompt)  # not kept: a size that is met for the first time takes memory, which costs time
            return [step for requests in batches for step in self.together(requests)]

    def together(self, requests: Items[tuple[int, int]]) -> list[RealStep]:
        """Requests that begin at once, of so many tokens in and out, until all are done. Raises what one ends with."""
        running = [self.submit(*request) for request in requests]
        steps = []
        while not all(sequence.finished for sequence in running):
            steps.append(self.step())
        if failed := [sequence.error for sequence in running if sequence.error is not None]:
            raise failed[0]
        return steps

    def submit(self, tokens: int, new: int) -> Sequence:
        """A request of any ids."""
        return submit_any(self.engine, self.draw, tokens, new)

    def step(self) -> RealStep:
        """The engine's next step."""
        engine, before = self.engine, self.clock.seconds
        forward, start = engine.forward_seconds, self.clock.now()
        engine.step()
        seconds, after = self.clock.now() - start, self.clock.seconds
        parts = {name: after[name] - before[name] for name in after}
        return RealStep(engine.sizes, seconds, engine.forward_seconds - forward, parts)


def submit_any(engine: Any, draw: random.Random, tokens: int, new: int) -> Sequence:
    """A request of so many tokens in and out; what it says does not matter to speed."""
    ids = [draw.randrange(3, engine.config.vocab_size) for _ in range(tokens)]
    sequence: Sequence = engine.submit(ids, SamplingParams(max_tokens=new, ignore_eos=True))
    return sequence


def batches_within(context: int) -> list[list[tuple[int, int]]]:
    """The requests of each batch, by tokens in and out: cut to a context, and left out where nothing would remain."""
    prompts = [[(tokens, 1)] for tokens in PROMPTS]
    dwindling = [(SHORT, 1 + EACH * (number + 1)) for number in range(BATCH)]
    wanted = [*prompts, dwindling, [(WIDE[1], 1 + LAST)] * WIDE[0], [(MANY[1], 1 + LAST)] * MANY[0]]
    fitting = [[(min(tokens, context - new), new) for tokens, new in batch if new < context] for batch in wanted]
    return [batch for batch in fitting if batch]


def blocks(block_size: int) -> int:
    """Of a pool that holds the largest of the batches."""
    return max(sum(-(-sum(request) // block_size) + 1 for request in batch) for batch in batches_within(2**30))


def sized(base: Any) -> Any:
    """A subclass of an engine that says the sizes of the step that it has prepared."""

    class Sized(base):
        sizes: Step

        def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
            batch = super().prepare(sequences)
            self.sizes = step_of(batch, sequences, self.options.block_size)
            return batch

    return Sized
