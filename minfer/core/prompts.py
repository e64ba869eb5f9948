"""Prompts: from what a user hands in to checked sequences.

A prompt is a string, a list of token ids, or a list of chat messages (dicts with `role` and `content`); a list of
these is several prompts.
"""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from minfer.core.errors import RequestError, TokenizerError
from minfer.core.params import SamplingParams
from minfer.core.sequence import Sequence
from minfer.core.tokenizer import Tokenizer

KINDS = "a prompt is a string, a list of token ids or of chat messages"

Prompt = str | list[int] | list[dict[str, Any]]
Prompts = Prompt | list[str] | list[list[int]] | list[list[dict[str, Any]]] | list[Prompt]
Params = SamplingParams | list[SamplingParams] | None


def split_prompts(prompts: Any) -> list[Any]:
    """One prompt or several -> a list of prompts. Raises `RequestError` for what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, list | tuple):
        if all(isinstance(item, str | list | tuple) for item in prompts):
            return list(prompts)
        if all(_is_id(item) for item in prompts) or all(isinstance(item, Mapping) for item in prompts):
            return [list(prompts)]
    raise RequestError(f"{KINDS}, or a list of prompts, not {_kind(prompts)}")


def spread_params(params: Any, count: int) -> list[SamplingParams]:
    """One `SamplingParams` for all prompts, or one per prompt -> one per prompt."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, list | tuple) or not all(isinstance(each, SamplingParams) for each in params):
        raise RequestError(f"params must be a SamplingParams or a list of them, not {_kind(params)}")
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling parameters for {count} prompts: give one, or one per prompt")
    return list(params)


class PromptReader:
    """Turns prompts into checked sequences for one model: its tokenizer, vocabulary and context."""

    def __init__(
        self, tokenizer: Tokenizer | None, vocab_size: int, context: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self.tokenizer, self.vocab_size, self.context = tokenizer, vocab_size, context
        known = tokenizer.eos_token_ids if tokenizer else eos_token_ids
        self.eos_token_ids = tuple(token_id for token_id in known if token_id < vocab_size)  # the head makes no others

    def sequences(self, prompts: Any, params: Any, arrived: float) -> list[Sequence]:
        """All prompts × n samples, in order, every one of them checked before any is run.

        Raises `RequestError`, or `TokenizerError` for text that cannot become tokens; both name the prompt.
        """
        each = split_prompts(prompts)
        made = []
        for number, (prompt, own) in enumerate(zip(each, spread_params(params, len(each)), strict=True)):
            try:
                made += self._samples(prompt, own, arrived)
            except (RequestError, TokenizerError) as error:
                raise type(error)(f"prompt {number}: {error}" if len(each) > 1 else str(error)) from error
        return made

    def _samples(self, prompt: Any, params: SamplingParams, arrived: float) -> list[Sequence]:
        prompt_ids = self.encode(prompt)
        self._check(prompt_ids, params)
        return [
            Sequence(
                prompt_ids,
                params,
                prompt=prompt,
                tokenizer=self.tokenizer,
                eos_token_ids=self.eos_token_ids,
                context=self.context,
                index=index,
                arrived=arrived,
            )
            for index in range(params.n)
        ]

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of one prompt; text gets the BOS that the tokenizer's files ask for, ids are taken as they are."""
        if isinstance(prompt, str):
            return self._tokenizer().encode(prompt)
        if isinstance(prompt, list | tuple) and all(_is_id(item) for item in prompt):
            return [int(item) for item in prompt]
        if isinstance(prompt, list | tuple) and all(isinstance(item, Mapping) for item in prompt):
            return self._tokenizer().apply_chat_template([dict(message) for message in prompt])
        raise RequestError(f"{KINDS}, not {_kind(prompt)}")

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError("this engine has no tokenizer: give token ids")
        return self.tokenizer

    def _check(self, prompt_ids: list[int], params: SamplingParams) -> None:
        if not prompt_ids:
            raise RequestError("the prompt is empty, and no BOS token was put before it: give at least one token")
        for token_id in prompt_ids:
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(f"token id {token_id} is outside the vocabulary (0 … {self.vocab_size - 1})")
        params.check(self.vocab_size)
        length, room = len(prompt_ids), 0 if params.max_tokens == 0 else 1
        if length + room > self.context:
            hint = "shorten it" if length > self.context else "one token must fit after it: shorten it"
            raise RequestError(f"prompt has {length} tokens, the context is {self.context}: {hint}")


def _is_id(item: Any) -> bool:
    return isinstance(item, Integral) and not isinstance(item, bool)  # numpy's integers are Integral too


def _kind(value: Any) -> str:
    if isinstance(value, list | tuple):
        inside = sorted({type(item).__name__ for item in value})
        return f"a list of {' and '.join(inside)}" if inside else "an empty list"
    return type(value).__name__ + (": give its .tolist()" if hasattr(value, "tolist") else "")
