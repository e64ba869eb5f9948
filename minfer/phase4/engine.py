"""Phase 4's change: `groups` says who runs together, `prepare` pads a group to one rectangle."""

from dataclasses import dataclass

import torch

from minfer.core.batch import ForwardBatch
from minfer.core.options import at_least, option
from minfer.core.sequence import Sequence
from minfer.phase3 import Engine as Phase3Engine
from minfer.phase3 import EngineOptions
from minfer.phase4.batch_kv_cache import BatchKVCache


@dataclass(frozen=True)
class BatchOptions(EngineOptions):
    """Phase 4's options."""

    max_batch: int = option(16, "most requests in one forward")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "max_batch", 1)


class Engine(Phase3Engine):
    """Groups of at most `max_batch` requests, each group run to its last token before the next begins."""

    Options = BatchOptions
    options: BatchOptions

    Cache = BatchKVCache

    def groups(self, sequences: list[Sequence]) -> list[list[Sequence]]:
        """One batch after another, in the order asked; each runs to its last token before the next begins."""
        size = self.options.max_batch
        return [sequences[first : first + size] for first in range(0, len(sequences), size)]

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """What the cache does not hold of each sequence, padded on the right to one width."""
        self.cache.keep(sequences)
        device = self.device.torch_device
        new = [sequence.token_ids[sequence.num_cached :] for sequence in sequences]
        width = max(len(ids) for ids in new)
        for sequence, ids in zip(sequences, new, strict=True):
            sequence.num_scheduled = len(ids)
        input_ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in new], device=device)
        starts = torch.tensor([[sequence.num_cached] for sequence in sequences], device=device)
        positions = starts + torch.arange(width, device=device)
        last = torch.tensor([row * width + len(ids) - 1 for row, ids in enumerate(new)], device=device)
        attention = self.cache.begin(positions, max(len(sequence.token_ids) for sequence in sequences))
        return ForwardBatch(input_ids, positions, attention, last, sequences)
