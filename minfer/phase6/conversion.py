"""Conversion: a model's linear layers become quantised ones, one after another."""

from dataclasses import replace
from typing import Any

from torch import nn

from minfer.core.errors import OptionsError
from minfer.phase6.quantized_linear import QuantizedLinear
from minfer.phase6.schemes import Scheme

HEAD = "lm_head"


def convert(model: nn.Module, scheme: Scheme, quantize_head: bool = False) -> None:
    """Exchange every `nn.Linear` of `model` for a quantised one, but not the head unless asked.

    Embeddings and norms stay. A head that is tied to the embedding gets a weight of its own, and the config says so.
    Beside the result there is at most one layer's weight in memory. Raises `OptionsError` for a model that is quantised
    with another scheme already.
    """
    for name, layer in quantized_layers(model).items():
        if layer.scheme != scheme:
            raise OptionsError(f"{name} is stored as {layer.scheme}, which cannot become {scheme}: use the original")
    for name in linear_names(model, quantize_head):
        owner, leaf = owner_of(model, name)
        setattr(owner, leaf, QuantizedLinear.from_linear(getattr(owner, leaf), scheme, name))
    if quantize_head:
        untie(model)


def linear_names(model: nn.Module, with_head: bool) -> list[str]:
    """The names of the plain linear layers; names only, so that a layer that was exchanged is not kept."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return [name for name in linear if with_head or name != HEAD]


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that has the submodule or parameter `name`, and its name there."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def quantized_layers(model: nn.Module) -> dict[str, QuantizedLinear]:
    """The quantised layers by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


def untie(model: Any) -> None:
    """Let the model's config say that the head is no longer the embedding."""
    model.config = replace(model.config, tie_word_embeddings=False)
