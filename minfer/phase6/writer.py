"""Writing a safetensors file tensor by tensor: the header is known from the shapes, before any value is made.

The library's own writer wants all tensors in memory at once. Format: 8 bytes with the header's length, the header in
JSON, then the numbers (github.com/huggingface/safetensors). Wide numbers come first, so that all are aligned.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from minfer.core.checkpoint.tensor_source import Outline
from minfer.core.checkpoint.weight_files import CODES, DTYPES

NAMES = {dtype: name for name, dtype in (DTYPES | CODES).items()}


class TensorWriter:
    """A file with a place for each outline; `write` fills one. Use it as a context: it closes the file."""

    def __init__(self, path: Path, outlines: list[Outline]) -> None:
        offsets, end = {}, 0
        for outline in sorted(outlines, key=lambda one: -one.dtype.itemsize):
            offsets[outline.name] = end
            end += outline.nbytes
        header = json.dumps({"__metadata__": {"format": "pt"}, **dict(_header(outlines, offsets))}).encode()
        header += b" " * (-len(header) % 8)
        self.start, self.places = 8 + len(header), {one.name: (offsets[one.name], one) for one in outlines}
        self.file: BinaryIO = path.open("wb")
        self.file.write(len(header).to_bytes(8, "little") + header)
        self.file.truncate(self.start + end)

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a tensor into its place; its shape and dtype are those of its outline."""
        offset, outline = self.places[name]
        if (tuple(tensor.shape), tensor.dtype) != (outline.shape, outline.dtype):
            raise ValueError(f"{name} is {tuple(tensor.shape)} of {tensor.dtype}, announced as {outline}")
        self.file.seek(self.start + offset)
        self.file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __enter__(self) -> "TensorWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def _header(outlines: list[Outline], offsets: dict[str, int]) -> Iterator[tuple[str, dict]]:
    for one in outlines:
        place = [offsets[one.name], offsets[one.name] + one.nbytes]
        yield one.name, {"dtype": NAMES[one.dtype], "shape": list(one.shape), "data_offsets": place}
