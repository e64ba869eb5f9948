"""Replies: what was generated, in OpenAI's shapes: whole, or as the chunks of a stream."""

import json
import time
import uuid
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from minfer.core.sequence import FinishReason, Sequence
from minfer.core.tokenizer import Tokenizer
from minfer.serve.call import Call, Delta
from minfer.serve.logprobs import ChatLogprobs, CompletionLogprobs

DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(body: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + dumps(body) + b"\n\n"


def dumps(body: Any) -> bytes:
    """Compact UTF-8."""
    return _encode(body).encode()


def usage(sequences: list[Sequence], samples: int) -> dict[str, Any]:
    """Numbers of tokens; a prompt counts once, however many samples are made of it."""
    firsts = sequences[::samples]
    prompt = sum(sequence.num_prompt for sequence in firsts)
    output = sum(len(sequence.output_ids) for sequence in sequences)
    cached = sum(sequence.num_shared for sequence in firsts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Reply:
    """Builds the answer to one API call; `kind` and the choices' shape are a subclass's."""

    prefix: str
    whole: str  # the type of a whole answer
    part: str  # of a chunk

    def __init__(self, call: Call, model: str, samples: int, fingerprint: str, include_usage: bool) -> None:
        self.call, self.samples, self.include_usage = call, samples, include_usage
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.head = {"id": self.id, "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}

    def body(self) -> dict[str, Any]:
        """The whole answer; the call has ended."""
        choices = [self.choice(index) for index in range(len(self.call.sequences))]
        numbers = usage(self.call.sequences, self.samples)
        return {**self.head, "object": self.whole, "choices": choices, "usage": numbers}

    def chunks(self, delta: Delta) -> Iterator[bytes]:
        """The events of a delta: one for each token, of which the last has the text, and the end if it ends."""
        for number in range(len(delta.token_ids) - 1):
            logprobs = delta.logprobs[number : number + 1]
            yield self._chunk(delta._replace(text="", logprobs=logprobs, finish_reason=None))
        yield self._chunk(delta._replace(logprobs=delta.logprobs[-1:]))

    def _chunk(self, delta: Delta) -> bytes:
        choice = {"index": delta.choice, **self.part_of(delta), "finish_reason": _reason(delta.finish_reason)}
        before, after = self._around
        return before + dumps(choice) + after

    @cached_property
    def _around(self) -> tuple[bytes, bytes]:
        """What stands before and after the choice in each chunk: made once, for there is a chunk for each token."""
        same: dict[str, Any] = {**self.head, "object": self.part, "choices": []}
        if self.include_usage:
            same["usage"] = None
        before, _, after = event(same).rpartition(b"[]")  # the last: a name may hold such brackets too
        return before + b"[", b"]" + after

    def tail(self) -> bytes:
        """What ends a stream."""
        if not self.include_usage:
            return DONE
        numbers = usage(self.call.sequences, self.samples)
        return event({**self.head, "object": self.part, "choices": [], "usage": numbers}) + DONE

    def choice(self, index: int) -> dict[str, Any]:
        """One choice of a whole answer."""
        raise NotImplementedError

    def part_of(self, delta: Delta) -> dict[str, Any]:
        """What a chunk's choice holds beside its index and its end."""
        raise NotImplementedError


class CompletionReply(Reply):
    """Of /v1/completions; with `echo`, a text begins with its prompt."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, *args: Any, tokenizer: Tokenizer, echo: bool) -> None:
        super().__init__(*args)
        self.tokenizer, self.echo = tokenizer, echo
        self.logprobs = [
            None if sequence.params.logprobs is None else CompletionLogprobs(tokenizer, sequence, echo)
            for sequence in self.call.sequences
        ]
        self.begun: set[int] = set()

    def choice(self, index: int) -> dict[str, Any]:
        """One choice of a whole answer."""
        sequence, logprobs = self.call.sequences[index], self.logprobs[index]
        return {
            "index": index,
            "text": self._prompt(sequence) + sequence.text if self.echo else sequence.text,
            "logprobs": logprobs and logprobs.take(sequence.logprobs, self.echo),
            "finish_reason": _reason(sequence.finish_reason),
            "stop_reason": sequence.stop_reason,
        }

    def part_of(self, delta: Delta) -> dict[str, Any]:
        """A piece of text; the prompt comes with the first."""
        sequence, logprobs = self.call.sequences[delta.choice], self.logprobs[delta.choice]
        echoed = self.echo and delta.choice not in self.begun
        self.begun.add(delta.choice)
        return {
            "text": self._prompt(sequence) + delta.text if echoed else delta.text,
            "logprobs": logprobs and logprobs.take(delta.logprobs, echoed),
        }

    def _prompt(self, sequence: Sequence) -> str:
        if isinstance(sequence.prompt, str):
            return sequence.prompt
        return self.tokenizer.decode(sequence.prompt_ids)


class ChatReply(Reply):
    """Of /v1/chat/completions."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, *args: Any, tokenizer: Tokenizer) -> None:
        super().__init__(*args)
        self.logprobs = ChatLogprobs(tokenizer)
        self.begun: set[int] = set()

    def choice(self, index: int) -> dict[str, Any]:
        """One choice of a whole answer."""
        sequence = self.call.sequences[index]
        return {
            "index": index,
            "message": {"role": "assistant", "content": sequence.text, "refusal": None},
            "logprobs": self.logprobs.of(sequence, sequence.logprobs),
            "finish_reason": _reason(sequence.finish_reason),
            "stop_reason": sequence.stop_reason,
        }

    def part_of(self, delta: Delta) -> dict[str, Any]:
        """A piece of text; the role comes with the first, which so is not sent before there is a token."""
        role = {} if delta.choice in self.begun else {"role": "assistant"}
        self.begun.add(delta.choice)
        sequence = self.call.sequences[delta.choice]
        said = {**role, "content": delta.text}
        return {"delta": said, "logprobs": self.logprobs.of(sequence, delta.logprobs)}


def _reason(reason: FinishReason | None) -> str | None:
    return None if reason is None else str(reason)
