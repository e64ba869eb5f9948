"""Mistakes of phase 4 with padding: rows of logits, positions, masks and windows, on either side."""

import torch

from minfer.phase4 import Engine
from tests.mutants.left_padded import LeftPadded, LeftPaddedCache
from tests.mutants.planting import Mutants
from tests.mutants.serving_probes import batch

MUTANTS = Mutants(phase=4)
plant = MUTANTS.plant


@plant("P4-01", batch(counts=(1, 1, 1)))
class LastColumn(Engine):
    def prepare(self, sequences):
        step = super().prepare(sequences)
        step.rows = (torch.arange(len(sequences)) + 1) * step.input_ids.shape[1] - 1
        return step


@plant("P4-01", batch(counts=(1, 1, 1)))
class LengthsOfTheSorted(Engine):
    def prepare(self, sequences):
        step = super().prepare(sequences)
        width = step.input_ids.shape[1]
        lengths = sorted(len(sequence.token_ids) - sequence.num_cached for sequence in sequences)
        step.rows = torch.tensor([row * width + length - 1 for row, length in enumerate(lengths)])
        return step


@plant("P4-02", batch("gpt2"))
class PositionIsColumn(LeftPadded):
    """Rotated positions are relative, so only a model with absolute ones shows it."""

    def positions(self, width):
        return torch.arange(self.cache.width)[-width:].expand(len(self.cache.padding), -1)


@plant("P4-02", batch("mha"))
class DecodeAtTheColumn(LeftPadded):
    def positions(self, width):
        if width > 1:
            return super().positions(width)
        return torch.arange(self.cache.width)[-1:].expand(len(self.cache.padding), -1)


@plant("P4-02", batch("mha"))
class OnePositionForAllRows(Engine):
    """Turned as if every row were as long as the longest; kept in the right columns."""

    def prepare(self, sequences):
        step = super().prepare(sequences)
        if step.positions.shape[1] == 1:
            step.positions = step.positions.amax().expand_as(step.positions)
        return step


class Unmasked(LeftPaddedCache):
    def mask(self, window):
        padding, self.padding = self.padding, torch.zeros_like(self.padding)
        seen = super().mask(window)
        self.padding = padding
        return seen.expand(len(padding), -1, -1, -1)


class UnmaskedInDecode(Unmasked):
    def mask(self, window):
        return super().mask(window) if self.new == 1 else LeftPaddedCache.mask(self, window)


@plant("P4-03", batch())
class PaddingSeen(LeftPadded):
    def allocate(self):
        super().allocate()
        self.cache = Unmasked(self.config)


@plant("P4-03", batch())
class PaddingSeenInDecode(LeftPadded):
    def allocate(self):
        super().allocate()
        self.cache = UnmaskedInDecode(self.config)


class MaskedById(LeftPaddedCache):
    def mask(self, window):
        seen = super().mask(window)
        return seen & (self.ids != LeftPadded.pad_id)[:, None, None, :] | torch.eye(seen.shape[-1]).bool()[-self.new :]


@plant("P4-07", batch(prompts=[[7, 3, 3, 8, 3, 9], [3, 5]], counts=(4, 4)))
class PaddingKnownByItsId(LeftPadded):
    def allocate(self):
        super().allocate()
        self.cache = MaskedById(self.config)

    def prepare(self, sequences):
        step = super().prepare(sequences)
        rows = zip(self.cache.padding.flatten().tolist(), sequences, strict=True)
        self.cache.ids = torch.tensor([[self.pad_id] * count + sequence.token_ids for count, sequence in rows])
        return step


@plant("P4-07", batch(prompts=[[7, 0, 0, 8, 0, 9], [5, 0]], counts=(4, 4)))
class PromptsStripped(Engine):
    """Whoever finds the length by counting what is not padding loses what the prompt ends with."""

    def prepare(self, sequences):
        step = super().prepare(sequences)
        width = step.input_ids.shape[1]
        if width > 1:
            kept = torch.where(step.input_ids != 0, torch.arange(width), 0).amax(1)
            step.rows = torch.arange(len(sequences)) * width + kept
        return step


@plant("P4-12", batch("mistral", (7, 1, 12), (12, 12, 12)))
class WindowCountsPadding(LeftPadded):
    """Each row's window is counted from the column that the longest prompt starts in."""

    def prepare(self, sequences):
        step = super().prepare(sequences)
        padding, mask = self.cache.padding, self.cache.mask

        def narrow(window):
            seen = mask(window)
            columns = torch.arange(seen.shape[-1])
            near = columns >= self.cache.width - (window or self.cache.width) + padding[:, :, None]
            return seen & near.unsqueeze(1) | torch.eye(len(columns)).bool()[-seen.shape[-2] :]

        self.cache.mask = narrow
        return step

    def forward(self, step):
        logits = super().forward(step)
        del self.cache.mask
        return logits


@plant("P4-12", batch("qwen3", (7, 1, 12), (12, 12, 12)))
class OneWindowForAllLayers(LeftPadded):
    def allocate(self):
        super().allocate()
        for layer in self.cache.layers:
            layer.window = self.config.windows[-1]
