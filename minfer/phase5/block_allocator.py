"""BlockAllocator: which blocks of the pool are whose, by reference counts; and which of them hold a known prefix."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Items
from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """What a full block holds: its tokens, and the digest of them and of all that precedes them."""

    digest: bytes
    tokens: tuple[int, ...]


class BlockAllocator:
    """Hands out block ids 0 … num_blocks-1.

    Invariants: a block is free exactly when its reference count is 0; free + used == num_blocks. A free block keeps its
    content and can be taken back by `share` until `allocate` needs it; the longest free goes first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._content: dict[int, Content] = {}
        self._by_digest: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def cached(self) -> list[int]:
        """Free blocks whose content can still be shared."""
        return [block for block in self._free if block in self._content]

    def allocate(self) -> int:
        """A block of one's own, whose old content is forgotten. The caller has seen that `num_free` is not 0."""
        block, _ = self._free.popitem(last=False)
        self.forget(block)
        self.references[block] = 1
        return block

    def release(self, block: int) -> None:
        """Give up one reference; with the last one the block is free. Raises `RuntimeError` on a double free."""
        if self.references[block] == 0:
            raise RuntimeError(f"block {block} is freed twice: nobody holds it")
        self.references[block] -= 1
        if self.references[block] == 0:
            self._free[block] = None

    def share(self, content: Content) -> int | None:
        """One more reference to the block that holds just this content; None if there is none."""
        block = self._by_digest.get(content.digest)
        if block is None or self._content[block].tokens != content.tokens:
            return None
        self._free.pop(block, None)
        self.references[block] += 1
        return block

    def publish(self, block: int, content: Content) -> None:
        """Let others share a full block, which from now on is never written. The first to publish a content wins."""
        if content.digest not in self._by_digest:
            self._content[block] = content
            self._by_digest[content.digest] = block

    def forget(self, block: int) -> None:
        """The block's content is gone, or was never written."""
        content = self._content.pop(block, None)
        if content is not None:
            del self._by_digest[content.digest]


def chain(parent: bytes, tokens: Items[int]) -> Content:
    """The content of a full block after `parent`, the digest of the block before (b"" for the first).

    A digest covers every token up to the block's end, since keys and values depend on all of them; it is SHA-256 at its
    full width, and `share` compares the tokens besides.
    """
    return Content(hashlib.sha256(parent + array("q", tokens).tobytes()).digest(), tuple(tokens))
