"""ForwardBatch: the tensors of one step, made in `prepare` and consumed in `forward`."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from torch import Tensor

from minfer.core.attention import Attention
from minfer.core.sequence import Sequence


@dataclass
class ForwardBatch:
    """What one forward of the model takes, and whose logits come out of it."""

    input_ids: Tensor  # int64 (*lead,)
    positions: Tensor  # int64 (*lead,)
    attention: Items[Attention]  # one per layer
    rows: Tensor  # int64 (R,): which positions of the flattened lead need logits
    sequences: list[Sequence]  # whose rows they are, R in all; a prefill chunk that is not the last has none
