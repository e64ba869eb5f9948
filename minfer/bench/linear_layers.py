"""Linear layers of an engine's model, in whatever form its phase has given them."""

from typing import Any

from torch import Tensor, nn

from minfer.phase6 import QuantizedLinear
from minfer.phase7.product import PackedLinear, TransposedLinear

LINEAR = (nn.Linear, QuantizedLinear, PackedLinear, TransposedLinear)
"""All that multiply by a weight; a plain one is visible to the compiler, the others are not."""


def weight_of(layer: Any) -> Tensor:
    """The tensor that a layer multiplies by; of a quantised layer there may be none."""
    weight: Tensor = layer.packed if isinstance(layer, PackedLinear) else layer.weight
    return weight


def called_layers(engine: Any) -> list[Any]:
    """Those that are called one by one, and so can be wrapped or hooked.

    Where regions are compiled, plain layers are not among them: to touch one would compile its region anew.
    """
    compilation = getattr(engine, "compilation", None)
    kinds = LINEAR if compilation is None or compilation.problem else LINEAR[1:]
    return [part for part in engine.model.modules() if isinstance(part, kinds)]
