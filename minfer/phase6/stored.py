"""Models that are stored quantised: built on `meta`, and filled with the codes as they are in the files."""

from collections.abc import Callable

import torch
from torch import nn

from minfer.core.checkpoint import Checkpoint
from minfer.core.gpt2 import GPT2
from minfer.core.model import Transformer
from minfer.core.models import skeleton
from minfer.core.stored_quantization import PARTS, StoredQuantization
from minfer.phase6.conversion import linear_names, owner_of
from minfer.phase6.names import find_scheme
from minfer.phase6.quantized_linear import QuantizedLinear, frozen


def quantized_skeleton(checkpoint: Checkpoint) -> Transformer | GPT2:
    """The model of a checkpoint that is stored quantised, with its quantised layers; parameters have shapes only."""
    model, stored = skeleton(checkpoint), checkpoint.config.quantization
    assert stored is not None
    exchange_hollow(model, stored)
    return model


def exchange_hollow(model: nn.Module, stored: StoredQuantization) -> None:
    """Exchange the linear layers of a hollow model for quantised ones that are as hollow."""
    scheme = find_scheme(stored.scheme, stored.group_size)
    with torch.device("meta"):
        for name in linear_names(model, stored.quantize_head):
            owner, leaf = owner_of(model, name)
            plain = getattr(owner, leaf)
            bias = plain.bias is not None
            setattr(owner, leaf, QuantizedLinear(plain.in_features, plain.out_features, scheme, bias))


def build_stored(checkpoint: Checkpoint, dtype: torch.dtype, home: Callable[[str], torch.device]) -> nn.Module:
    """The model, parameters at home: codes and scales as stored, the rest in `dtype`. Raises `CheckpointError`."""
    model = quantized_skeleton(checkpoint)
    for name, source in checkpoint.plan(model).items():
        owner, leaf = owner_of(model, name)
        setattr(owner, leaf, frozen(source.read(None if leaf in PARTS else dtype, home(name))))
    model.tie()
    model.make_tables()
    return model
