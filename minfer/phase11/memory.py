"""MemoryParts: what an engine's memory is taken by."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class MemoryParts:
    """Bytes. The parts are disjoint, and together `total`.

    weights       parameters, each once, in the form that their products want
    kv            the pool of the KV cache, its scratch block too
    buffers       tensors that the model keeps beside its weights, such as rotary tables; the memory of graphs
    activations   the most that steps held above all that lives longer; None: not measured, `Engine.profile` does that
    runtime       what else is taken: Python, torch, libraries; on a card its context, torch's reserve, other users
    """

    weights: int
    kv: int
    buffers: int
    activations: int | None
    runtime: int

    @classmethod
    def of(cls, engine: Any, activations: int | None = None) -> "MemoryParts":
        """Count what an engine holds; the runtime is the rest of what is taken now."""
        weights, buffers = tensor_bytes(engine.model)
        buffers += engine.graphs.nbytes if engine.graphs is not None else 0
        kv = engine.cache.pool.nbytes
        return cls(weights, kv, buffers, activations, max(0, engine.device.taken_memory() - weights - kv - buffers))

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.buffers + (self.activations or 0) + self.runtime


def tensor_bytes(model: nn.Module) -> tuple[int, int]:
    """Bytes of a model's weights and of the other tensors that its modules keep; shared memory is counted once."""
    weights: dict[int, int] = {}
    others: dict[int, int] = {}
    for module in model.modules():
        opaque: Any = getattr(module, "kernel", None)
        for name, value in [*vars(module).items(), *module._parameters.items(), *module._buffers.items()]:
            if isinstance(value, Tensor):
                kept = name in module._parameters or value.layout is not torch.strided  # a packed weight is opaque
                (weights if kept else others)[_memory(value)] = value.numel() * value.element_size()
            elif name == "packed" and value is not None:
                weights[id(value)] = opaque.opaque_bytes(module)
    return sum(weights.values()), sum(nbytes for key, nbytes in others.items() if key not in weights)


def _memory(tensor: Tensor) -> int:
    """The same number for tensors that share their memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
