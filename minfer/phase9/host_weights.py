"""HostWeights: the weights of one layer, end to end in pinned memory, so that one copy brings them all."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minfer.core.device import Device
from minfer.phase8 import PackedLinear, Product, QuantizedLinear

ALIGNMENT = 256  # bytes; what products on cards want of the address of a matrix


class HostWeights:
    """A layer whose tensors lie in a buffer of the device, in which they are only while it is the layer's turn."""

    def __init__(self, layer: nn.Module, device: Device) -> None:
        """Take the layer's tensors out of it; `bind` gives it others."""
        for module in list(layer.modules()):
            make_plain(module)
        self.layer, self.offsets, end = layer, [], 0
        for _, _, tensor in tensors_of(layer):
            self.offsets.append(end)
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        self.bytes = device.pinned((end,), torch.uint8)
        for (_, _, tensor), offset in zip(tensors_of(layer), self.offsets, strict=True):
            self.bytes[offset : offset + tensor.nbytes].copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory, and of a buffer that takes them."""
        return len(self.bytes)

    def bind(self, buffer: Tensor) -> None:
        """Let the layer's tensors be parts of `buffer`, uint8 of `nbytes` at least: from now on, and nothing else."""
        for (owner, name, tensor), offset in zip(list(tensors_of(self.layer)), self.offsets, strict=True):
            part = buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            kept = nn.Parameter(part, requires_grad=False) if isinstance(tensor, nn.Parameter) else part
            setattr(owner, name, kept)


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
