"""Phase 7's change: `prepare_model` merges products and compiles what lies between two attentions."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from minfer.core.options import option
from minfer.phase6 import Engine as Phase6Engine
from minfer.phase6 import PagedKVCache, PagedStep, QuantizationOptions
from minfer.phase7.compilation import Compilation
from minfer.phase7.decoding import Decoding, alike
from minfer.phase7.fused_model import FusedModel, between, fused

WARMUP_TOKENS = (1, 7)  # one row is a size of its own to the compiler; seven stands for any other number
WARMUP_BLOCKS = 3  # of a decode step: any number above 1


@dataclass(frozen=True)
class FusionOptions(QuantizationOptions):
    """Phase 7's options."""

    compiler: str = option("auto", "torch.compile backend for what lies between attentions: auto, none, inductor, …")


class Engine(Phase6Engine):
    """Phase 6's layers, merged; and what lies between two attentions as one compiled region."""

    Options = FusionOptions
    options: FusionOptions

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Merge, then quantise as asked (scales are per output channel: the codes are the same), then compile."""
        self.compilation = Compilation(self.options.compiler, sum(weight.numel() for weight in model.parameters()))
        prepared = super().prepare_model(fused(model))
        if isinstance(prepared, FusedModel):
            prepared.use_fast_products(self.device)
            self.compile(prepared)
        return prepared

    def compile(self, model: FusedModel) -> None:
        """Have the model's regions compiled when they first run.

        Every device gets the region between two attentions. A CPU whose layers are all alike also gets `Decoding`: the
        same region with a decode step's attention in it. A card needs no such region: it has kernels for attention, and
        phase 8's graphs save the launches around them.
        """
        if self.compilation.problem:
            return
        if alike(model.layers) and self.device.torch_device.type == "cpu":
            model.decoding = Decoding(partial(self.compilation.compiled, guarded_by="x"))
        model.between = self.compilation.compiled(between)

    def allocate(self) -> None:
        """As before; and compile now, so that no request waits for it."""
        super().allocate()
        if isinstance(self.model, FusedModel) and not self.compilation.problem:
            self.compilation.attempt(self.warmup, self.device)
            if self.compilation.problem:
                self.model.between, self.model.decoding = between, None

    @torch.inference_mode()
    def warmup(self) -> None:
        """Run the model on each kind of size that the compiler knows; no request and no request's cache is touched."""
        decoding = isinstance(self.model, FusedModel) and self.model.decoding is not None
        for count in WARMUP_TOKENS:
            batch = self.whole([0] * min(count, self.context), [])
            if decoding:
                self.decode_rows(batch.input_ids)
            if not decoding or count > 1:
                self.model(batch.input_ids, batch.positions, batch.attention, batch.rows)

    def decode_rows(self, input_ids: Tensor) -> None:
        """A decode step of first tokens `(B,)`, over a pool of its own."""
        cache = PagedKVCache(self.cache.config, WARMUP_BLOCKS, self.cache.block_size, self.dtype, input_ids.device)
        positions = torch.zeros_like(input_ids)
        tables = positions.unsqueeze(1).expand(-1, WARMUP_BLOCKS).contiguous()
        masks = cache.decode_masks(positions, WARMUP_BLOCKS * cache.block_size)
        cache.step = PagedStep(positions, tables, masks, [])
        self.model(input_ids, positions, cache.layers)
