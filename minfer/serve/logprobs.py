"""Log-probabilities in OpenAI's two shapes: columns for completions, a list of tokens for chats."""

from typing import Any

from minfer.core.sampling import TokenLogprob
from minfer.core.sequence import Sequence
from minfer.core.tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for -inf, which JSON does not have."""


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; one that is no whole characters is spelled as OpenAI does: `bytes:\\xe2\\x80`."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionLogprobs:
    """Of one sequence, in columns: tokens, their log-probabilities, the likeliest beside them, where each begins."""

    def __init__(self, tokenizer: Tokenizer, sequence: Sequence, echo: bool) -> None:
        self.tokenizer, self.sequence, self.echo = tokenizer, sequence, echo
        self.offset = 0  # characters before the next token
        self._decoder = tokenizer.stream_decoder(() if echo else sequence.prompt_ids)

    def take(self, drawn: list[TokenLogprob], with_prompt: bool) -> dict[str, list[Any]]:
        """The columns of the tokens that follow; the prompt's own before them, of which the first has none."""
        entries: list[tuple[int, TokenLogprob | None]] = [(one.token_id, one) for one in drawn]
        if with_prompt:
            own = zip(self.sequence.prompt_ids, self.sequence.prompt_logprobs or [], strict=False)
            entries = [*own, *entries]
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, one in entries:
            columns["tokens"].append(token_text(self.tokenizer, token_id))
            columns["token_logprobs"].append(None if one is None else max(one.logprob, LEAST))
            columns["top_logprobs"].append(None if one is None else self._top(one))
            columns["text_offset"].append(self.offset)
            self.offset += len(self._decoder.push(token_id))
        return columns

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens, and the one that was drawn."""
        pairs = [*one.top, (one.token_id, one.logprob)]
        return {token_text(self.tokenizer, token_id): max(value, LEAST) for token_id, value in pairs}


class ChatLogprobs:
    """A list of tokens, each with its bytes and the likeliest in its place."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def of(self, sequence: Sequence, logprobs: list[TokenLogprob]) -> dict[str, Any] | None:
        """None for a request that did not ask."""
        if sequence.params.logprobs is None:
            return None
        return {"content": [self._entry(one) for one in logprobs], "refusal": None}

    def _entry(self, one: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token_id, value) for token_id, value in one.top]
        return {**self._token(one.token_id, one.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.token_bytes(token_id)
        return {"token": token_text(self.tokenizer, token_id), "logprob": max(logprob, LEAST), "bytes": list(raw)}
