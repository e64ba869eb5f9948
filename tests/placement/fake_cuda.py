"""A GPU that is not there: tensors on `cuda` that have shapes, dtypes and a device, but no values.

`FakeTensorMode` gives them, raises `FakeTensorDeviceMismatchError` where devices mix and `DataDependentOutputException`
where the host reads a value. Two things are added: `Watch` sees every copy between the host and the card, and an index
on the host into a tensor on the card, which torch allows (and waits for); `Bindings` stands in for the parts of torch's
Python bindings that a build without CUDA lacks. With a CUDA build, card or no card, only `torch.tensor` and `Tensor.to`
are stood in for: in inference mode they would make a real tensor of a single number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minfer.core.device import CPU

aten = torch.ops.aten


class FakeGPU(CPU):
    """The card as `core/device.py` shows one; it has no streams, so the host's way of doing without serves."""

    torch_device = torch.device("cuda", 0)
    works_beside_host = True

    def auto_dtype(self, stored):
        return stored, "as stored"

    def free_memory(self):
        return 2**30


@dataclass(frozen=True)
class Copy:
    """One copy between devices, and in which part of the engine's step it was made."""

    section: str
    source: str
    target: str


class Watch(TorchDispatchMode):
    """Records copies between devices; refuses operations on tensors of both, scalars on the host excepted."""

    def __init__(self) -> None:
        super().__init__()
        self.section = "set-up"
        self.copies: list[Copy] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        taken = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if function is aten.copy_.default:
            self._copied(taken[1], taken[0])
        elif taken:
            devices = {tensor.device for tensor in taken if tensor.dim()}
            assert len(devices) < 2, f"{function} mixes {' and '.join(map(str, devices))} in {self.section}"
            for tensor in tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    self._copied(taken[0], tensor)
        return made

    def _copied(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if source.device != target.device:
            self.copies.append(Copy(self.section, source.device.type, target.device.type))


class Bindings(TorchFunctionMode):
    """Indexing, copies and moves of fake CUDA tensors by operators, for builds whose bindings ask a CUDA runtime."""

    def __init__(self) -> None:
        super().__init__()
        self.stand_ins = {torch.tensor: _tensor, torch.Tensor.to: _to}
        if not torch.backends.cuda.is_built():
            self.stand_ins |= STAND_INS

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return self.stand_ins.get(function, function)(*args, **(kwargs or {}))


def _tensor(values, dtype=None, device="cpu"):
    return aten._to_copy.default(torch.tensor(values, dtype=dtype), device=torch.device(device))


def _getitem(x, index):
    x, indices = _basic(x, index)
    return aten.index.Tensor(x, indices) if indices else x


def _setitem(x, index, value):
    view, indices = _basic(x, index)
    if not isinstance(value, torch.Tensor):
        value = aten.full.default([], value, dtype=x.dtype, device=x.device)
    if indices:
        aten.index_put_.default(view, indices, value)
    else:
        aten.copy_.default(view, value)


def _basic(x, index):
    """The view by integers, slices, None and Ellipsis, and the tensors that are left: one per dimension, or None."""
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [item for item in items if not isinstance(item, torch.Tensor)]:
        place = next(i for i, item in enumerate(items) if item is Ellipsis)
        consumed = sum(item is not None and item is not Ellipsis for item in items)
        items[place : place + 1] = [slice(None)] * (x.dim() - consumed)
    indices, dim = [], 0
    for item in items:
        if isinstance(item, int) and not isinstance(item, bool):
            x = aten.select.int(x, dim, item)
            continue
        if item is None:
            x = aten.unsqueeze.default(x, dim)
        elif isinstance(item, slice):
            x = aten.slice.Tensor(x, dim, item.start, item.stop, item.step or 1)
        else:
            tensor = item if isinstance(item, torch.Tensor) else torch.tensor(item, device=x.device)
            assert tensor.dtype != torch.bool, "an index by a mask has a shape that depends on its values"
            indices += [None] * (dim - len(indices)) + [tensor]
        dim += 1
    return x, indices


def _to(x, *args, copy=False, **kwargs):
    device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    device, dtype = device or x.device, dtype or x.dtype
    if (device.type, dtype) == (x.device.type, x.dtype) and not copy:
        return x
    return aten._to_copy.default(x, dtype=dtype, device=device, non_blocking=non_blocking)


def _contiguous(x, memory_format=torch.contiguous_format):
    return x if x.is_contiguous() else aten.clone.default(x, memory_format=memory_format)


STAND_INS = {
    torch.Tensor.__getitem__: _getitem,
    torch.Tensor.__setitem__: _setitem,
    torch.Tensor.cuda: lambda x: _to(x, "cuda"),
    torch.Tensor.copy_: lambda x, source, non_blocking=False: aten.copy_.default(x, source, non_blocking),
    torch.Tensor.contiguous: _contiguous,
    torch.Tensor.item: aten._local_scalar_dense.default,
    torch.Tensor.__int__: aten._local_scalar_dense.default,
}


@contextmanager
def fake_cuda() -> Iterator[Watch]:
    """In this context tensors have no values, and `device="cuda"` works on any machine."""
    watch = Watch()
    with FakeTensorMode(), watch, Bindings():
        yield watch


def place(model: torch.nn.Module) -> torch.nn.Module:
    """Give a model that was built on `meta` fake parameters on the card, as a loader would give real ones."""
    for name, parameter in list(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        weight = torch.empty(parameter.shape, dtype=parameter.dtype, device="cuda")
        setattr(model.get_submodule(owner), leaf, torch.nn.Parameter(weight, requires_grad=False))
    model.tie()
    model.make_tables()
    return model
