"""Phase 7's change: `prepare_model` merges products and compiles what lies between two attentions."""

from dataclasses import dataclass

import torch
from torch import nn

from minfer.core.options import option
from minfer.phase6 import Engine as Phase6Engine
from minfer.phase6 import QuantizationOptions
from minfer.phase7.compilation import Compilation
from minfer.phase7.fused_model import FusedModel, between, fused

WARMUP_TOKENS = (1, 7)  # one row is a size of its own to the compiler; seven stands for any other number


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
            prepared.between = self.compilation.compiled(between)
        return prepared

    def allocate(self) -> None:
        """As before; and compile now, so that no request waits for it."""
        super().allocate()
        if isinstance(self.model, FusedModel) and not self.compilation.problem:
            self.compilation.attempt(self.warmup, self.device)
            if self.compilation.problem:
                self.model.between = between

    @torch.inference_mode()
    def warmup(self) -> None:
        """Run the model on both kinds of sizes that the compiler tells apart; it touches no cache and no request."""
        for count in WARMUP_TOKENS:
            batch = self.whole([0] * min(count, self.context), [])
            self.model(batch.input_ids, batch.positions, batch.attention, batch.rows)
