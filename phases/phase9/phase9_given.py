"""Phase 9, Streams: what its starter needs, and no task is about."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from minfer.core.errors import OptionsError
from minfer.core.options import at_least, option
from minfer.phase8 import GraphOptions, PackedLinear, Product, QuantizedLinear

# ==== phase9/options.py =============================================================================================
# Phase 9's options.


@dataclass(frozen=True)
class StreamOptions(GraphOptions):
    """Phase 9's options."""

    offload_layers: int = option(0, "layers whose weights stay in host memory and are fetched in each step; no graphs")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "offload_layers", 0)
        if self.offload_layers and self.graph_batch:
            raise OptionsError(
                f"graph_batch = {self.graph_batch} with offload_layers = {self.offload_layers}: a graph is recorded "
                "over weights that stay where they are: leave one of the two out"
            )
        if self.offload_layers:
            object.__setattr__(self, "graph_batch", 0)  # the default, which is known only now

    def offloaded(self, layers: int) -> list[int]:
        """Which of so many layers stay on the host: evenly spaced, so that others compute while one is fetched.

        Raises `OptionsError` if there are not as many.
        """
        count = self.offload_layers
        if count > layers:
            raise OptionsError(f"offload_layers = {count}: the model has {layers} layers: give at most that")
        return [(2 * number + 1) * layers // (2 * count) for number in range(count)]


# ==== phase9/usage.py ===============================================================================================
# OverlapUsage: how many steps ran beside the host's work on the one before, and why others did not.


@dataclass
class OverlapUsage:
    """Counted since the engine was made; each step that has landed counts once."""

    overlapped: int = 0
    """Steps whose tokens were read when the next one had been launched."""
    alone: Counter[str] = field(default_factory=Counter)
    """The others, by reason: `host` (it does all the work itself, as on a CPU), `last` (no request had anything to do
    next), `penalties` (a draw depends on what was drawn before), `logprobs` (they are read with the draw), `failure`
    (requests are run one by one to find a culprit)."""

    def landed(self, obstacle: str) -> None:
        """Count a step; empty: it was overlapped."""
        if obstacle:
            self.alone[obstacle] += 1
        else:
            self.overlapped += 1

    def figures(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {"overlapped": self.overlapped, "alone": dict(self.alone)}


# ==== phase9/host_weights.py ========================================================================================
# HostWeights: the weights of one layer, end to end in pinned memory, so that one copy brings them all.


ALIGNMENT = 256  # bytes; what products on cards want of the address of a matrix


def tensors_of(layer: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Every parameter and buffer of the layer, with the module that has it and its name there."""
    for module in layer.modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield module, name, tensor


def make_plain(module: nn.Module) -> None:
    """Undo what a CPU's libraries have packed into something that cannot be copied piece by piece."""
    for name, part in list(module.named_children()):
        if isinstance(part, PackedLinear) and isinstance(module, Product):
            module.exchange(part.unpacked())
        elif isinstance(part, PackedLinear):
            setattr(module, name, part.unpacked())
    if isinstance(module, QuantizedLinear) and module.packed is not None:
        module.unpack()


# ==== phase9/weight_stream.py =======================================================================================
# WeightStream: layers that live on the host, each fetched into one of two buffers while the layers before it compute.
#
# Of twelve layers 1, 4, 7 and 10 are on the host, as numbers 0 to 3:
#
#     layer      0  1  2  3  4  5  6  7  8  9 10 11
#     buffer 0      0  ···fetch 2···  2  ···fetch 0 of the next step
#     buffer 1               1  ···fetch 3···  3  ···fetch 1 of the next step


BUFFERS = 2


# ==== phase9/engine.py ==============================================================================================
# Phase 9's change: `advance` launches a step before the tokens of the one before are read; `prepare` feeds them.
#
# And layers may stay on the host: `home` keeps them there, `prepare_model` has them fetched when their turn is.


LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")
