"""What is said of requests between an engine and its replicas; tokens and numbers, never tensors."""

import pickle
from dataclasses import dataclass
from typing import NamedTuple

from minfer.core.errors import MinferError
from minfer.core.params import SamplingParams
from minfer.core.sampling import TokenLogprob
from minfer.core.sequence import FinishReason, Sequence
from minfer.core.tokenizer import Tokenizer


@dataclass(frozen=True)
class Take:
    """A request for the replica to answer, with the seed that its draws depend on."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    index: int
    seed: int
    eos_token_ids: tuple[int, ...]
    context: int

    @classmethod
    def of(cls, sequence: Sequence, eos_token_ids: tuple[int, ...]) -> "Take":
        """The request that `sequence` is."""
        facts = (sequence.params, sequence.index, sequence.seed)
        return cls(sequence.id, sequence.prompt_ids, *facts, eos_token_ids, sequence.context)

    def sequence(self, tokenizer: Tokenizer | None, arrived: float) -> Sequence:
        """The same request in the replica."""
        made = Sequence(
            self.prompt_ids,
            self.params,
            tokenizer=tokenizer,
            eos_token_ids=self.eos_token_ids,
            context=self.context,
            index=self.index,
            arrived=arrived,
        )
        made.id, made.seed = self.id, self.seed
        return made


class TakeBack(NamedTuple):
    """Nobody waits for that request any longer."""

    id: int


class Advance(NamedTuple):
    """What is new of a request: tokens that were drawn, or how it failed.

    `waited` is from its arrival in the replica to the first step that had it: a duration, since clocks of two
    processes are not compared.
    """

    id: int
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob | None] | None
    shared: int  # of the prompt's tokens, those that the cache held
    waited: float
    drawing: float | None
    error: Exception | None

    @classmethod
    def of(cls, sequence: Sequence, told: int) -> "Advance":
        """What is new since `told` tokens were told of."""
        stamps = sequence.timestamps
        waited = (stamps.scheduled or stamps.arrived) - stamps.arrived
        return cls(
            sequence.id,
            sequence.output_ids[told:],
            sequence.logprobs[told:],
            sequence.prompt_logprobs,
            sequence.num_shared,
            waited,
            stamps.drawing,
            portable(sequence.error),
        )

    def apply(self, sequence: Sequence, given: float, now: float) -> None:
        """Let the request that was given at `given` know of it at `now`: each token by the same stop rules."""
        stamps = sequence.timestamps
        if stamps.scheduled is None:
            stamps.scheduled = min(now, given + self.waited)
            stamps.drawing = self.drawing or 0.0
            sequence.prompt_logprobs, sequence.num_shared = self.prompt_logprobs, self.shared
        sequence.logprobs += self.logprobs
        for token_id in self.token_ids:
            sequence.append(token_id, now)
        if self.error is not None:
            sequence.error = self.error
            sequence.finish(FinishReason.ABORT, now)


def portable(error: Exception | None) -> Exception | None:
    """An error that can be said; one that cannot, in words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return MinferError(f"{type(error).__name__}: {error}")
    return error
