"""Token ids to text, one token at a time.

Every token stands for some bytes: a whole word, or a part of one character. So a text is the UTF-8 decoding of the
bytes of its tokens, and an incremental UTF-8 decoder is all that streaming needs: it keeps the at most three bytes of
a character that has begun and gives out the rest. Nothing is decoded twice, whatever the length of the text.

Formats that put a space in front of every text when they encode (SentencePiece's dummy prefix) drop it again when they
decode. That is the one thing that depends on where a token stands, so the table holds both readings of each token.
"""

import codecs
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from minfer.core.errors import TokenizerError

REPLACEMENT = "\ufffd"
EACH_BYTE = "minfer_each_byte"
"""The UTF-8 error handler of SentencePiece: one replacement character for every byte of a broken character."""


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _replace_each_byte)


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of every token id, and what becomes of a broken character.

    `inside[i]` is token i in the middle of a text, `opening[i]` the same token while the text is still empty: there it
    may lose a leading space. At most `leading` tokens lose one (0, 1 or `math.inf`). `errors` names a UTF-8 error
    handler: "replace" (a byte-level BPE: one replacement per broken character) or `EACH_BYTE` (byte fallback).
    """

    inside: Sequence[bytes]
    opening: Sequence[bytes]
    leading: float
    errors: str

    def __post_init__(self) -> None:
        assert len(self.inside) == len(self.opening)
        assert self.leading in (0, 1, math.inf)

    def without(self, ids: Iterable[int]) -> "TokenBytes":
        """The same table, in which `ids` stand for nothing."""
        inside, opening = list(self.inside), list(self.opening)
        for i in ids:
            inside[i] = opening[i] = b""
        return replace(self, inside=inside, opening=opening)


class StreamDecoder:
    """Gives out the text of a token sequence as it grows.

    Invariant: what `push` returned so far, and then `finish()`, join to the one-shot decoding of the same ids; only the
    bytes of an unfinished character (at most 3) are held back. `prompt_ids` come before the text and are not given out,
    but a character that they begin is, when it ends. An id that the table does not hold (a model's head may be wider
    than its vocabulary) stands for nothing.
    """

    def __init__(self, table: TokenBytes, prompt_ids: Iterable[int] = ()) -> None:
        self._table = table
        self._leading = table.leading
        self._decode_utf8: Callable[..., str] = codecs.getincrementaldecoder("utf-8")(table.errors).decode
        self.push_all(prompt_ids)

    def push(self, token_id: int) -> str:
        """The text that became certain with `token_id`, perhaps "". A negative id raises `TokenizerError`."""
        return self._decode_utf8(self._bytes_of(token_id))

    def push_all(self, token_ids: Iterable[int]) -> str:
        """`push` of several tokens at once."""
        return self._decode_utf8(b"".join(map(self._bytes_of, token_ids)))

    def finish(self) -> str:
        """The rest, when no token follows: replacement characters where a character was left unfinished, or ""."""
        return self._decode_utf8(b"", True)

    def _bytes_of(self, token_id: int) -> bytes:
        inside = self._table.inside
        if not 0 <= token_id < len(inside):
            if token_id < 0:
                raise TokenizerError(f"token id {token_id} is negative: ids are 0 to {len(inside) - 1}")
            return b""
        if not self._leading:
            return inside[token_id]
        opening = self._table.opening[token_id]
        if opening:
            self._leading = 0
        elif inside[token_id]:
            self._leading -= 1
        return opening
