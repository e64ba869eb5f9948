"""The `decoder` of a tokenizer.json, read as a rule from a token's spelling to its bytes.

The file describes it as steps over a whole list of tokens. All steps that language models use work token by token, save
for what they do to the first one, so they can be applied once to each entry of the vocabulary.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from minfer.core.errors import TokenizerError
from minfer.core.tokenizer.stream_decoder import EACH_BYTE, TokenBytes

SUPPORTED = "ByteLevel, ByteFallback, Replace, Metaspace, Fuse, Strip of one leading space, and sequences of these"


def _byte_level_alphabet() -> dict[int, int]:
    """GPT-2's stand-ins (code points) -> bytes: visible Latin-1 characters are themselves, the rest U+0100 and up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in visible]
    return {byte: byte for byte in visible} | {0x100 + i: byte for i, byte in enumerate(hidden)}


NOT_A_BYTE = 0x100
ALPHABET = dict.fromkeys(range(0x100), NOT_A_BYTE) | _byte_level_alphabet()
BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class TokenDecoder:
    """`bytes_of` a token, in the middle of a text and at its start."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        self._replacements: list[tuple[str, str]] = []
        self._byte_level = self._byte_fallback = self._fused = False
        self._dropped_at_start = ""  # Metaspace: this character, wherever it is in the first token
        self._leading = 0
        self._spaced = decoder is None  # no decoder: the package joins tokens with spaces
        for step in _steps(decoder):
            self._read(step)

    def _read(self, step: dict[str, Any]) -> None:
        match step:
            case {"type": "ByteLevel"}:
                self._byte_level = True
            case {"type": "ByteFallback"}:
                self._byte_fallback = True
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                self._replacements.append((pattern, content))
            case {"type": "Metaspace", "replacement": character}:
                self._replacements.append((character, " "))
                if step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True):
                    self._dropped_at_start = character
            case {"type": "Fuse"}:
                self._fused = True
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0} if self._fused:
                self._leading = start
            case _:
                raise TokenizerError(f"tokenizer.json: the decoder {step} is not supported; minfer knows {SUPPORTED}")

    def table(self, spellings: Sequence[str | None]) -> TokenBytes:
        """The bytes of the tokens with these spellings; None, an id that no token has, stands for nothing."""
        both = [(b"", b"") if spelling is None else self.bytes_of(spelling) for spelling in spellings]
        inside, opening = ([pair[side] for pair in both] for side in (0, 1))
        leading = 1 if self._leading or self._dropped_at_start or self._spaced else 0
        return TokenBytes(inside, opening, leading, errors="replace" if self._byte_level else EACH_BYTE)

    def bytes_of(self, spelling: str) -> tuple[bytes, bytes]:
        """(bytes in the middle of a text, bytes at its start)"""
        if self._byte_level:
            return (_byte_level(spelling),) * 2
        if self._spaced:
            return f" {spelling}".encode(), spelling.encode()
        inside = self._plain(spelling)
        if self._dropped_at_start:
            return inside, self._plain(spelling.replace(self._dropped_at_start, ""))
        return inside, inside.removeprefix(b" " * self._leading)

    def _plain(self, spelling: str) -> bytes:
        for pattern, content in self._replacements:
            spelling = spelling.replace(pattern, content)
        byte = BYTE.fullmatch(spelling) if self._byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else spelling.encode()


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def _byte_level(spelling: str) -> bytes:
    try:
        return spelling.translate(ALPHABET).encode("latin-1")
    except UnicodeEncodeError:  # an added token, spelled as it is
        return spelling.encode()
