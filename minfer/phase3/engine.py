"""Phase 3's change: `prepare` feeds only the tokens that the cache does not hold yet."""

from typing import Any

import torch

from minfer.core.batch import ForwardBatch
from minfer.core.errors import RequestError
from minfer.core.sequence import Sequence
from minfer.phase2 import Engine as Phase2Engine
from minfer.phase2 import EngineOptions
from minfer.phase3.kv_cache import KVCache, KVUsage

__all__ = ["Engine", "EngineOptions"]


class Engine(Phase2Engine):
    """One request at a time, each token computed once."""

    Cache: Any = KVCache  # made of (config, dtype, device); has `reserve`, `begin`, `usage` and `nbytes`

    def allocate(self) -> None:
        """An empty cache; it grows to the longest request seen, and is used again by the next."""
        self.cache = self.Cache(self.config, self.dtype, self.device.torch_device)
        self.owners: list[Sequence] = []

    def admit(self, sequences: list[Sequence]) -> None:
        """Give the cache to the sequences, empty and with room for their last tokens."""
        if self.owners:
            raise RequestError(f"request {self.owners[0].id} still streams from this engine: finish or close it first")
        self.refuse_too_large(sequences)
        self.owners = list(sequences)
        super().admit(sequences)
        self.cache.reserve(sequences)

    def refuse_too_large(self, sequences: list[Sequence]) -> None:
        """Raise `RequestError` if memory cannot take a row for each sequence, as long as the longest can become."""
        rows, longest = len(sequences), max(sequence.max_length for sequence in sequences)
        needed = rows * longest * self.config.kv_numbers_per_token * self.dtype.itemsize
        free = self.device.free_memory() + getattr(self.cache, "nbytes", 0)
        if needed > free:
            raise RequestError(
                f"a KV cache of {rows} × {longest} tokens needs {needed:,} bytes, {free:,} are free: "
                "lower max_tokens, the context or the batch"
            )

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """All of the prompt at first, then one token: whatever the cache does not hold."""
        (sequence,) = sequences
        start, end = sequence.num_cached, len(sequence.token_ids)
        sequence.num_scheduled = end - start
        device = self.device.torch_device
        input_ids = torch.tensor(sequence.token_ids[start:], device=device)
        positions = torch.arange(start, end, device=device)
        last = torch.tensor([end - start - 1], device=device)
        return ForwardBatch(input_ids, positions, self.cache.begin(positions), last, sequences)

    def release(self, sequence: Sequence) -> None:
        """The cache is free for the next request once all its owners have let go."""
        super().release(sequence)
        if sequence in self.owners:
            self.owners.remove(sequence)

    def kv_usage(self) -> KVUsage:
        """How much of the cache holds something now."""
        return self.cache.usage(self.owners)
