"""Call: one API call on its way through the engine; Delta: what one step did for one of its sequences."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from minfer.core.sampling import TokenLogprob
from minfer.core.sequence import FinishReason, Sequence
from minfer.serve.errors import ApiError, engine_error


class Delta(NamedTuple):
    """What is new of one sequence since the last delta: a token, its end, or both."""

    choice: int  # which of the call's sequences
    text: str  # that became certain; perhaps "", where a character or a stop string may still grow
    token_ids: list[int]
    times: list[float]  # when they were known, on the engine's clock
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None
    error: ApiError | None


class Call:
    """The sequences of one API call, and what has come of them.

    The engine's thread makes deltas, the event loop takes them; the queue between them holds no more than the call's
    sequences hold themselves, so a client that reads slowly costs no more memory than one that reads fast.
    """

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences
        self.loop = asyncio.get_running_loop()
        self.unfinished = len(sequences)
        self.taken_in = False  # by the engine's thread
        self._deltas: asyncio.Queue[Delta] = asyncio.Queue()

    @property
    def num_tokens(self) -> int:
        """The most tokens that its sequences can come to, prompts and answers."""
        return sum(sequence.max_length for sequence in self.sequences)

    def put(self, delta: Delta) -> None:
        """A delta has come; in the event loop."""
        self._deltas.put_nowait(delta)

    def expire(self, error: ApiError) -> None:
        """It has taken too long: whoever waits for its deltas gets `error`."""
        self.put(ended(0, error))

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """All that has come since the last time, until every sequence has ended."""
        while self.unfinished:
            come = [await self._deltas.get()]
            while not self._deltas.empty():
                come.append(self._deltas.get_nowait())
            self.unfinished -= sum(delta.finish_reason is not None for delta in come)
            yield come


class Seen:
    """How much of a sequence its client's call has been told; in the engine's thread."""

    def __init__(self, call: Call, index: int) -> None:
        self.call, self.index, self.sequence = call, index, call.sequences[index]
        self.tokens = 0

    def news(self) -> Delta | None:
        """What is new, if anything is."""
        sequence, seen = self.sequence, self.tokens
        count = len(sequence.output_ids)
        if count == seen and not sequence.finished:
            return None
        self.tokens = count
        return Delta(
            self.index,
            sequence.take_text(),
            sequence.output_ids[seen:],
            sequence.timestamps.tokens[seen:],
            sequence.logprobs[seen:count] if sequence.params.logprobs is not None else [],
            sequence.finish_reason,
            None if sequence.error is None else engine_error(f"{type(sequence.error).__name__}: {sequence.error}"),
        )

    def end(self, error: ApiError) -> Delta:
        """It will not go on: nothing more is known of it."""
        return ended(self.index, error)


def ended(index: int, error: ApiError) -> Delta:
    """The end of a sequence of which nothing more will come."""
    return Delta(index, "", [], [], [], FinishReason.ABORT, error)
