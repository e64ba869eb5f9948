"""Phase 4 of another make: padded on the left, with the padding counted off each row's positions.

As it stands it is right (`tests/mutants/correct45.py`); planted bugs change one of its steps.
"""

import torch

from minfer.core.attention import LayerAttention, Visible
from minfer.core.batch import ForwardBatch
from minfer.phase4 import Engine, KVUsage


class LeftPaddedLayer(LayerAttention):
    """Keeps what it has seen by joining columns; shows all of it under the step's mask."""

    def __init__(self, cache, window):
        self.cache, self.window = cache, window
        self.keys = self.values = None

    def update(self, k, v):
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], 1), torch.cat([self.values, v], 1)
        self.keys, self.values = k, v
        return Visible(k, v, self.cache.mask(self.window))


class LeftPaddedCache:
    """Column c of row r is position c - padding[r] of its sequence; all rows are of one width, and new columns join."""

    def __init__(self, config):
        self.layers = [LeftPaddedLayer(self, window) for window in config.windows]
        self.owners, self.width, self.new = [], 0, 0
        self.padding = torch.empty(0, 1, dtype=torch.int64)

    def usage(self, owners):
        return KVUsage.of(owners, len(self.owners) * self.width)

    def reserve(self, sequences):
        self.owners, self.width = list(sequences), 0
        for layer in self.layers:
            layer.keys = layer.values = None

    def keep(self, owners):
        rows = torch.tensor([self.owners.index(owner) for owner in owners])
        self.owners, self.padding = list(owners), self.padding[rows]
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]

    def begin(self, new):
        self.new, self.width = new, self.width + new
        return self.layers

    def mask(self, window):
        """(B, 1, T, S): a padding query sees itself, so that no row is empty."""
        columns = torch.arange(self.width)
        queries = columns[-self.new :, None]
        distance = queries - columns
        seen = (distance >= 0) & (distance < (window or self.width))
        return ((columns >= self.padding[:, :, None]) & seen | (distance == 0)).unsqueeze(1)


class LeftPadded(Engine):
    """Phase 4 padded on the left: the last column is every row's last token."""

    pad_id = 3

    def allocate(self):
        super().allocate()
        self.cache = LeftPaddedCache(self.config)

    def prepare(self, sequences):
        cache = self.cache
        if not cache.width:
            cache.owners = list(sequences)
            width = max(len(sequence.token_ids) for sequence in sequences)
            cache.padding = torch.tensor([[width - len(sequence.token_ids)] for sequence in sequences])
        elif len(sequences) < len(cache.owners):
            cache.keep(sequences)
        new = [sequence.token_ids[sequence.num_cached :] for sequence in sequences]
        width = max(len(ids) for ids in new)
        for sequence, ids in zip(sequences, new, strict=True):
            sequence.num_scheduled = len(ids)
        attention = cache.begin(width)
        input_ids = torch.tensor([[self.pad_id] * (width - len(ids)) + ids for ids in new])
        rows = torch.arange(1, len(new) + 1) * width - 1
        return ForwardBatch(input_ids, self.positions(width), attention, rows, sequences)

    def positions(self, width):
        """Of the newest `width` columns, (B, width)."""
        columns = torch.arange(self.cache.width)[-width:]
        return (columns - self.cache.padding).clamp(min=0)
