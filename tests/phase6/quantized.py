"""Quantised layers, as these tests look at them. Nothing else of an engine of phase 6 is asked for:

    options        quantization: fp16, int8, int4, fp8; group_size; quantize_rows; quantize_head
    engine.model   every nn.Linear but `lm_head` is exchanged for a layer that has
        in_features, out_features, bias     as nn.Linear
        dequantize()                        the weight that it stands for, float64 `(out, in)`
        codes                               int8 or float8 `(out, in)`; int4: uint8 `(out, ⌈in/2⌉)`, low nibble first
        nbytes                              of the weight as it is held, scales included
        merged([layers])                    of its class: one layer, their channels one after another
    engine.kernels                          name -> .layers, the names it was chosen for; .ran, rows -> how often
    files          as `minfer quantize` writes them: the layer's parameters beside each other in place of `weight`, and
                   quantization_config in config.json

In float64, on a CPU, a layer holds its codes as they are and multiplies with what `dequantize()` says.
"""

import copy

import torch
from torch import nn

INT4 = {"quantization": "int4"}
INT8 = {"quantization": "int8"}
FP8 = {"quantization": "fp8"}
FP16 = {"quantization": "fp16"}
SCHEMES = (FP16, INT8, INT4, FP8)


class Holder(nn.Module):
    """A model that is only asked for its linear layers."""

    def __init__(self, config, **layers):
        super().__init__()
        self.config = config
        for name, layer in layers.items():
            setattr(self, name, layer)


def linear(weight, bias=None):
    """An nn.Linear of this weight."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    made.weight.data = weight.clone()
    if bias is not None:
        made.bias.data = bias.clone()
    return made


def quantized(engine_cls, lab, weight, bias=None, **options):
    """What an engine makes of a linear layer with this weight."""
    holder = Holder(lab.config(), layer=linear(weight, bias))
    return lab.engine(engine_cls, holder, None, **options).model.layer


def layers(model):
    """The quantised layers by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "dequantize")}


def rows(*shape, seed=0, dtype=torch.float64):
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def steps(weight, bits, group=None):
    """For each weight half the step that a right grid of so many bits needs: over its row, or its group of columns.

    A group's grid may have to reach 0, if its zero point is one of its codes.
    """
    if group is None:
        return (weight.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1) / 2).expand_as(weight)
    parts = []
    for part in weight.split(group, dim=-1):
        reach = part.amax(-1, keepdim=True).clamp_min(0) - part.amin(-1, keepdim=True).clamp_max(0)
        parts.append((reach / (2**bits - 1) / 2).expand_as(part))
    return torch.cat(parts, dim=-1)


def twin(model, engine):
    """The tiny model whose weights are those that the engine's layers stand for: what the engine must answer."""
    weights = dict(model.weights)
    shapes = model._shapes
    for name, layer in layers(engine.model).items():
        weight = layer.dequantize().numpy()
        stored = weight.T if shapes.stored_transposed(f"{name}.weight") else weight
        weights[model._name_in_file(f"{name}.weight")] = stored
    made = copy.copy(model)
    vars(made).pop("oracle", None)
    made.weights = weights
    return made
