"""Phase 6's change: `prepare_model` exchanges linear layers for quantised ones; `build_model` reads stored ones."""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from torch import nn

from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.options import EngineOptions, option
from minfer.phase5 import Engine as Phase5Engine
from minfer.phase5 import PagedOptions
from minfer.phase6.conversion import convert, quantized_layers
from minfer.phase6.int4 import GROUP_SIZES
from minfer.phase6.names import SCHEMES, find_scheme
from minfer.phase6.schemes import Scheme
from minfer.phase6.stored import build_stored


@dataclass(frozen=True)
class QuantizationOptions(PagedOptions):
    """Phase 6's options."""

    quantization: str | None = option(None, f"weights of linear layers: {', '.join(SCHEMES)}; default: as they are")
    group_size: int = option(32, f"int4: columns that share a scale: {', '.join(map(str, GROUP_SIZES))}")
    quantize_rows: bool = option(False, "int8, fp8: round each row of a product's input to 8 bits too")
    quantize_head: bool = option(False, "quantise the head too; a tied one gets a weight of its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantization is not None or self.group_size != 32:
            find_scheme(self.quantization or "int4", self.group_size)
        if self.quantize_rows and self.quantization not in (None, "int8", "fp8"):
            raise OptionsError(f"quantize_rows goes with int8 and fp8, not with quantization = {self.quantization}")


@dataclass
class KernelUse:
    """What one kernel serves: the names of layers, and how often it ran, by the number of rows."""

    layers: list[str] = field(default_factory=list)
    ran: Counter[int] = field(default_factory=Counter)


class Engine(Phase5Engine):
    """Phase 5's scheduling over linear layers whose weights are kept in fewer bits."""

    Options = QuantizationOptions
    options: QuantizationOptions

    @classmethod
    def build_model(cls, checkpoint: Checkpoint, options: EngineOptions) -> nn.Module:
        """As before; a checkpoint that `minfer quantize` wrote keeps its codes."""
        if checkpoint.config.quantization is None:
            return super().build_model(checkpoint, options)
        dtype, _ = Device.get(options.device).dtype(options.dtype, checkpoint.dtype)
        return build_stored(checkpoint, dtype, partial(cls.home, config=checkpoint.config, options=options))

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Quantise what is not yet; then give each layer the kernel for this device and dtype."""
        model = super().prepare_model(model)
        options = self.options
        if options.quantization is not None:
            convert(model, self.scheme(), options.quantize_head)
        layers = quantized_layers(model)
        if (options.quantize_rows or options.quantize_head) and not layers:
            raise OptionsError("quantize_rows and quantize_head need quantization=…, or a model stored quantised")
        for layer in layers.values():
            layer.use_rounded_rows(options.quantize_rows)
            layer.pack(self.device, self.dtype)
        return model

    def scheme(self) -> Scheme:
        """What `quantization` names."""
        return find_scheme(str(self.options.quantization), self.options.group_size)

    @property
    def kernels(self) -> dict[str, KernelUse]:
        """Which kernel was chosen for which layers, and which ran, on how many rows, how often."""
        uses: dict[str, KernelUse] = {}
        for name, layer in quantized_layers(self.model).items():
            uses.setdefault(layer.kernel.name, KernelUse()).layers.append(name)
            for (kernel, rows), times in layer.ran.items():
                uses.setdefault(kernel, KernelUse()).ran[rows] += times
        return uses
