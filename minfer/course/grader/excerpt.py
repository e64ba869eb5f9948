"""Excerpt: the first and the last of what a process prints, however much that is."""

from dataclasses import dataclass
from typing import IO

KEPT = 32 * 1024  # bytes, at the beginning and at the end


@dataclass
class Excerpt:
    """The first and the last of what a process prints; megabytes between them are dropped."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0

    def follow(self, stream: IO[bytes]) -> None:
        """Read until the process closes the stream."""
        while part := stream.read1(65536):  # type: ignore[attr-defined]
            room = KEPT - len(self.head)
            self.head += part[:room]
            self.tail = (self.tail + part[room:])[-KEPT:]
            self.total += len(part)

    @property
    def text(self) -> str:
        """As text, with a word about what is left out."""
        left_out = self.total - len(self.head) - len(self.tail)
        middle = f"\n… {left_out:,} bytes left out …\n" if left_out else ""
        return (self.head.decode(errors="replace") + middle + self.tail.decode(errors="replace")).strip()
