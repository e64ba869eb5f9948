"""Sequence: the state of one request, from its prompt to its last token; Completion: what its user gets.

Invariant: `token_ids == prompt_ids + output_ids`, and the first `num_cached` of them have their keys and values in the
cache. A step computes what comes after; there is no separate state for prefill and decode.
"""

import hashlib
import itertools
import secrets
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from minfer.core.params import SamplingParams
from minfer.core.sampling import TokenLogprob
from minfer.core.stopping import StopChecker
from minfer.core.tokenizer import Tokenizer

_ids = itertools.count()


class Status(str, Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(str, Enum):
    """Why a request ended."""

    STOP = "stop"  # an end token, a stop token or a stop string; `stop_reason` says which
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # its user took it back, or the step it was in failed (`error` says how)

    __str__ = str.__str__


@dataclass
class Timestamps:
    """Seconds of the engine's monotonic clock; None: has not happened."""

    arrived: float
    scheduled: float | None = None
    tokens: list[float] = field(default_factory=list)  # when each output token was known
    finished: float | None = None
    drawing: float | None = None  # no moment: how long the device took to draw the first token from its logits


@dataclass(frozen=True)
class Completion:
    """The answer to one request.

    `text` is what `token_ids` add to the prompt, without the end token and cut before a stop string; `token_ids` are
    all tokens that were drawn, the end token included.
    """

    text: str
    token_ids: list[int]
    prompt: Any
    prompt_ids: list[int]
    finish_reason: FinishReason
    stop_reason: int | str | None
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob | None] | None
    timestamps: Timestamps
    index: int = 0
    """Which of the n samples of its prompt."""
    error: str | None = None


class Sequence:
    """One request on its way through an engine."""

    def __init__(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        prompt: Any = None,
        tokenizer: Tokenizer | None = None,
        eos_token_ids: tuple[int, ...] = (),
        context: int = 2**31,
        index: int = 0,
        arrived: float = 0.0,
    ) -> None:
        self.id = next(_ids)
        self.prompt, self.index, self.params, self.context = prompt, index, params, context
        self.prompt_ids = list(prompt_ids)
        self.output_ids: list[int] = []
        self.token_ids = list(prompt_ids)
        self.num_cached = 0
        self.num_scheduled = 0  # tokens that the step in hand puts into the cache
        self.num_pending = 0  # tokens that launched steps have drawn and the host has not read: they follow token_ids
        self.num_shared = 0  # of the prompt's tokens, those that the cache held when the request began
        self.seed = sample_seed(params.seed, index)
        self.end_ids = (() if params.ignore_eos else eos_token_ids) + tuple(params.stop_token_ids)
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.timestamps = Timestamps(arrived)
        self.text = ""
        self._taken = 0
        self._decoder = tokenizer.stream_decoder(self.prompt_ids) if tokenizer else None
        self._stops = StopChecker(params.stop)
        if params.max_tokens == 0:
            self.finish(FinishReason.LENGTH, arrived)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)

    @property
    def num_drawn(self) -> int:
        """Tokens of the answer, pending ones included: the place of the next to be drawn."""
        return len(self.output_ids) + self.num_pending

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer, pending ones included."""
        return self.num_prompt + self.num_drawn

    @property
    def length_reached(self) -> bool:
        """Whether no further token may be drawn, whatever the pending ones are."""
        return self.num_tokens >= self.max_length

    @property
    def finished(self) -> bool:
        """Whether no further token will come."""
        return self.status is Status.FINISHED

    @property
    def max_length(self) -> int:
        """The longest that prompt and answer can become, in tokens."""
        wanted = self.params.max_tokens
        return self.context if wanted is None else min(self.context, self.num_prompt + wanted)

    def append(self, token_id: int, now: float) -> None:
        """Take in the token that was drawn, add its text, and end the request if a stop rule says so."""
        may_stop = len(self.output_ids) >= self.params.min_tokens
        ends = may_stop and token_id in self.end_ids
        text = self._decoder.push(token_id) if self._decoder and not ends else ""  # first: it may raise
        self.output_ids.append(token_id)
        self.token_ids.append(token_id)
        self.timestamps.tokens.append(now)
        if ends:
            self.stop_reason = token_id
            self.finish(FinishReason.STOP, now)
            return
        self._add_text(text, may_stop, now)
        if not self.finished and len(self.token_ids) >= self.max_length:
            self.finish(FinishReason.LENGTH, now)

    def known_ids(self, start: int, end: int) -> list[int]:
        """The tokens from position `start` up to `end`; 0 for pending ones."""
        known = self.token_ids[start:end]
        return known + [0] * (end - start - len(known))

    def forget_pending(self) -> None:
        """Pending tokens, and what was noted of them, never were: they are drawn again, and are the same then."""
        self.num_pending = 0
        del self.logprobs[len(self.output_ids) :]

    def finish(self, reason: FinishReason, now: float) -> None:
        """End the request: release the text that was held back; idempotent."""
        if self.finished:
            return
        if reason is not FinishReason.ABORT and self._decoder:
            self._add_text(self._decoder.finish(), len(self.output_ids) > self.params.min_tokens, now)
        if self.finished:  # a stop string was completed by the very last characters
            return
        self.text += self._stops.flush()
        self._end(reason, now)

    def take_text(self) -> str:
        """The text that is new since the last call; what may still become a stop string is not in it."""
        text, start = self.text, self._taken  # another thread's step may add to it meanwhile
        self._taken = len(text)
        return text[start:]

    def completion(self) -> Completion:
        """What the user gets; the request must be finished."""
        assert self.finish_reason is not None, f"request {self.id} is still {self.status.value}"
        return Completion(
            text=self.text,
            token_ids=list(self.output_ids),
            prompt=self.prompt,
            prompt_ids=self.prompt_ids,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=self.logprobs[: len(self.output_ids)] if self.params.logprobs is not None else None,
            prompt_logprobs=self.prompt_logprobs,
            timestamps=self.timestamps,
            index=self.index,
            error=f"{type(self.error).__name__}: {self.error}" if self.error else None,
        )

    def _add_text(self, text: str, may_stop: bool, now: float) -> None:
        safe, matched = self._stops.push(text, may_stop=may_stop)
        self.text += safe
        if matched is not None:
            self.stop_reason = matched
            self._end(FinishReason.STOP, now)

    def _end(self, reason: FinishReason, now: float) -> None:
        self.status, self.finish_reason = Status.FINISHED, reason
        self.timestamps.finished = now


def sample_seed(seed: int | None, index: int) -> int:
    """The seed of sample `index` of a request: the first sample of n draws what n = 1 would draw."""
    if seed is None:
        return secrets.randbits(63)
    if index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest(), "little")
