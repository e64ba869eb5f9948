"""TensorSource: where the values of one parameter are stored, and how they come from there into memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minfer.core.errors import CheckpointError

COMPARED_ROWS = 4096


@dataclass(frozen=True)
class Outline:
    """What a tensor is without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Its bytes in `dtype`."""
        return prod(self.shape) * self.dtype.itemsize


class TensorSource(Outline, ABC):
    """Where the values of one parameter come from; `shape` is the model's, `dtype` the one they are kept in."""

    def read(self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Tensor:
        """A fresh, contiguous tensor of `shape` that owns its memory, in `dtype` (default: our own)."""
        destination = torch.empty(self.shape, dtype=dtype or self.dtype, device=device)
        self.read_into(destination)
        return destination

    @abstractmethod
    def read_into(self, destination: Tensor) -> None:
        """Copy the values into `destination`, which has our shape; its dtype and device are kept."""

    def check_shape(self, destination: Tensor) -> None:
        """Raise `CheckpointError` unless `destination` has our shape."""
        if destination.shape != self.shape:
            raise CheckpointError(f"{self.name} has shape {self.shape}, its destination {tuple(destination.shape)}")


@dataclass(frozen=True)
class StoredTensor(TensorSource):
    """A parameter in a safetensors file; `shape` is the model's, that is after transposition."""

    file: Path
    name_in_file: str
    transposed: bool = False

    def read_into(self, destination: Tensor) -> None:
        """Copy the values; beside the destination this takes at most one tensor's memory, none within a CPU.

        Raises `CheckpointError` on another shape, or if the file has changed since it was planned.
        """
        self.check_shape(destination)
        with self.mapped() as values, torch.no_grad():
            destination.copy_(values)

    @contextmanager
    def mapped(self) -> Iterator[Tensor]:
        """A view of the file's own pages, in our shape and the stored dtype, valid inside the block only."""
        try:
            with safe_open(self.file, framework="pt") as opened:
                values = opened.get_tensor(self.name_in_file)
                yield values.t() if self.transposed else values
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.file} can no longer give {self.name_in_file}: {error}") from error

    def refuse_unequal(self, copy: "StoredTensor") -> None:
        """Raise `CheckpointError` if `copy`, stored for the same parameter, differs; some rows at a time."""
        with self.mapped() as values, copy.mapped() as others:
            for rows, other_rows in zip(values.split(COMPARED_ROWS), others.split(COMPARED_ROWS), strict=True):
                if not torch.equal(rows, other_rows.to(rows.dtype)):
                    raise CheckpointError(
                        f"{copy.name_in_file} in {copy.file.name} differs from {self.name_in_file} in "
                        f"{self.file.name}, though config.json ties them: set tie_word_embeddings to false there if "
                        "the model has its own head"
                    )
