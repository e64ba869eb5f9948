"""Row-parallel weights quantised as the whole model's are: a channel has one scale, whichever ranks have its columns.

Column-parallel layers need nothing: their channels are whole. Scales of groups of columns (int4) are the whole's too,
where ranks have whole groups (`shard_plan.GRANULES`).
"""

from typing import Any

import torch
from torch import nn

from minfer.core.group import Group
from minfer.phase9 import PerChannel, QuantizedLinear, Scheme
from minfer.phase10.parallel_layers import RowParallel, VocabularyHead


def quantize_rows_together(model: nn.Module, scheme: Scheme, group: Group) -> None:
    """Quantise the row-parallel layers of a shard by a scheme with a scale per channel; with another, do nothing."""
    if not isinstance(scheme, PerChannel):
        return
    for module in model.modules():
        if isinstance(module, RowParallel) and isinstance(module.linear, nn.Linear):
            module.linear = quantized(module.linear.weight, scheme, group)


def quantized(weight: torch.Tensor, scheme: PerChannel, group: Group) -> QuantizedLinear:
    """The columns `weight (out, own)` of a row-parallel layer, with the scales of all ranks' columns together.

    They get one column more, of each channel's largest weight anywhere, which says the scale and is then left out.
    """
    largest = group.all_gather(weight.abs().amax(-1)).amax(0)
    parts = scheme.encode(torch.cat([weight, largest[:, None]], dim=1), "a row-parallel weight")
    with torch.device("meta"):
        layer = QuantizedLinear(weight.shape[1], weight.shape[0], scheme)
    layer.hold({**parts, "codes": parts["codes"][:, :-1].contiguous()})
    return layer


def quantize_head(model: Any, scheme: Scheme) -> None:
    """Quantise this rank's rows of a head that ranks share; any other is a linear layer like all others."""
    head = model.lm_head
    if isinstance(head, VocabularyHead) and head.weight is not None:
        with torch.device("meta"):
            rows = nn.Linear(head.weight.shape[1], head.weight.shape[0], bias=False)
        rows.weight = head.weight
        head.quantize(QuantizedLinear.from_linear(rows, scheme, "lm_head"))
