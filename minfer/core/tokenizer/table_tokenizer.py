"""TableTokenizer: what the two kinds of tokenizer files share, which is all but the splitting of text into tokens."""

import operator
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from minfer.core.errors import TokenizerError
from minfer.core.tokenizer.chat import ChatTemplate, Disguise, check_messages
from minfer.core.tokenizer.special_tokens import AddedToken, TokenSplitter
from minfer.core.tokenizer.stream_decoder import StreamDecoder, TokenBytes
from minfer.core.tokenizer.tokenizer import Tokenizer


class TableTokenizer(Tokenizer):
    """A tokenizer that knows the bytes of each id and the spelling of each control token; a subclass splits text.

    `special` are the control tokens, `prefix` and `suffix` the ids that go around a text, `names` the variables of the
    chat template ("bos_token", …). `head_size` is the number of ids that the model may give out (0: unknown); those
    past the vocabulary decode to "".
    """

    def __init__(
        self,
        *,
        table: TokenBytes,
        special: Iterable[AddedToken],
        prefix: list[int],
        suffix: list[int],
        eos_token_ids: Iterable[int],
        head_size: int,
        chat_template: str | None,
        names: Mapping[str, str | None],
    ) -> None:
        self._splitter = TokenSplitter(special)
        self._prefix, self._suffix = prefix, suffix
        self.vocab_size = len(table.inside)
        self.bos_token_id = prefix[0] if prefix else None
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.special_ids = frozenset(token.id for token in self._splitter.tokens)
        self._table, self._visible = table, table.without(self.special_ids)
        self._num_ids = max(self.vocab_size, head_size)
        self._template_source = chat_template
        self._template_names = {name: text for name, text in names.items() if text is not None}

    @abstractmethod
    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        """Token ids of text and control tokens in turn; text is text, whatever it spells."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        check_text(text, "the text")
        if not parse_special:
            ids = self.encode_segments([text])
            return [*self._prefix, *ids, *self._suffix] if add_special_tokens else ids
        ids = self.encode_segments(self._splitter.split(text))
        if add_special_tokens and ids[: len(self._prefix)] != self._prefix:
            ids = self._prefix + ids
        if add_special_tokens and ids[max(0, len(ids) - len(self._suffix)) :] != self._suffix:
            ids = ids + self._suffix
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode`."""
        ids = list(ids)
        for position, token_id in enumerate(ids):
            if not 0 <= self._checked(token_id, position) < self._num_ids:
                raise TokenizerError(
                    f"token id {token_id} at position {position} is outside the vocabulary of {self._num_ids} tokens"
                )
        return self.decode_after((), ids, skip_special_tokens=skip_special_tokens)

    def decode_after(self, prompt_ids: Sequence[int], ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode_after`."""
        decoder = StreamDecoder(self._visible if skip_special_tokens else self._table, prompt_ids)
        return decoder.push_all(ids) + decoder.finish()

    def stream_decoder(self, prompt_ids: Sequence[int] = ()) -> StreamDecoder:
        """See `Tokenizer.stream_decoder`."""
        return StreamDecoder(self._visible, prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._table.inside[token_id] if 0 <= token_id < self.vocab_size else b""

    def apply_chat_template(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """See `Tokenizer.apply_chat_template`."""
        check_messages(messages)
        for i, message in enumerate(messages):
            for key in ("role", "content"):
                check_text(message[key], f"messages[{i}][{key!r}]")
        disguise = Disguise(self._splitter.tokens, messages)
        chat = self._chat_template.render(disguise.put_on(messages), add_generation_prompt=add_generation_prompt)
        check_text(chat, "the chat")
        segments = self._splitter.split(chat)
        return self.encode_segments([disguise.take_off(s) if isinstance(s, str) else s for s in segments])

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        if self._template_source is None:
            raise TokenizerError(
                "this model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "it was not trained to chat, so give it plain text"
            )
        return ChatTemplate(self._template_source, self._template_names)

    @staticmethod
    def _checked(token_id: Any, position: int) -> int:
        try:
            return operator.index(token_id)
        except TypeError as error:
            kind = type(token_id).__name__
            raise TokenizerError(f"token ids are integers, but position {position} holds a {kind}") from error


def check_text(text: Any, what: str) -> None:
    """Raise `TokenizerError` unless `text` is a string that UTF-8 can hold; `what` names it."""
    if not isinstance(text, str):
        raise TokenizerError(f"{what} must be a string, not a {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"{what} is not valid Unicode: character {error.start} is the lone surrogate "
            f"U+{ord(text[error.start]):04X}; read it again with errors='replace'"
        ) from error
