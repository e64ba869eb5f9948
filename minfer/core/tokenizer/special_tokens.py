"""Tokens that stand outside the vocabulary's own splitting of text: beginning, end, roles of a chat, …"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minfer.core.errors import TokenizerError

MOST_IDS = 2**24
"""More than any vocabulary has: a larger id in a file is damage, and would cost gigabytes of table."""


@dataclass(frozen=True)
class AddedToken:
    """One such token, as Hugging Face's files describe it.

    A `special` one is a control token: text that spells it is not it, unless the caller asks for that. One that is not
    special is an ordinary word that is always read as one token. `lstrip` and `rstrip` swallow the white space beside
    it; `single_word` asks that no letter or digit touches it.
    """

    id: int
    text: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @classmethod
    def from_entry(cls, token_id: int, entry: Mapping[str, Any]) -> "AddedToken":
        """From an entry of `added_tokens` (tokenizer.json) or of `added_tokens_decoder` (tokenizer_config.json)."""
        if type(token_id) is not int or not 0 <= token_id < MOST_IDS:
            raise TokenizerError(
                f"the added token {entry['content']!r} has the id {token_id!r}: ids are integers below {MOST_IDS}"
            )
        flags = {name: bool(entry.get(name)) for name in ("special", "lstrip", "rstrip", "single_word")}
        return cls(token_id, entry["content"], **flags)

    @property
    def pattern(self) -> str:
        """A regular expression for where this token stands in a text."""
        pattern = re.escape(self.text)
        if self.single_word:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        return (r"\s*" if self.lstrip else "") + pattern + (r"\s*" if self.rstrip else "")


class TokenSplitter:
    """Finds some added tokens in a text: the leftmost first, and of those that start together the longest."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self.tokens = sorted((t for t in tokens if t.text), key=lambda t: len(t.text), reverse=True)
        self._by_text = {token.text: token for token in self.tokens}
        # No groups: they would keep `re` from skipping to the characters that tokens begin with.
        self._pattern = re.compile("|".join(token.pattern for token in self.tokens) or "(?!)")

    def split(self, text: str) -> list[str | int]:
        """Text and token ids in turn: text (perhaps empty), id, text, …, id, text."""
        segments: list[str | int] = []
        end = 0
        for match in self._pattern.finditer(text):
            segments += [text[end : match.start()], self._token(match[0]).id]
            end = match.end()
        return [*segments, text[end:]]

    def _token(self, matched: str) -> AddedToken:
        """The token that was found; `matched` may hold white space that it swallowed."""
        if matched in self._by_text:
            return self._by_text[matched]
        return next(token for token in self.tokens if re.fullmatch(token.pattern, matched))
