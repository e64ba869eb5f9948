"""Saving: a checkpoint whose linear layers are codes, made from one of plain weights, a tensor at a time."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from minfer.core.checkpoint import Checkpoint, TensorSource
from minfer.core.checkpoint.tensor_source import Outline
from minfer.core.checkpoint.weight_files import SINGLE
from minfer.core.errors import CheckpointError
from minfer.core.models import skeleton
from minfer.core.stored_quantization import KEY, StoredQuantization
from minfer.phase6.conversion import HEAD, linear_names
from minfer.phase6.names import find_scheme
from minfer.phase6.schemes import Scheme
from minfer.phase6.writer import TensorWriter

COPIED = ("*.json", "*.model", "*.txt", "*.jinja")
"""Files beside the weights that come along: the tokenizer's, the chat template, generation defaults."""


@dataclass(frozen=True)
class Item:
    """A parameter of the model, where it is stored, and the scheme that it gets, if any."""

    name: str
    source: TensorSource
    scheme: Scheme | None = None

    @property
    def outlines(self) -> list[Outline]:
        """The tensors that stand for it in the new file."""
        if self.scheme is None:
            return [Outline(self.name, self.source.shape, self.source.dtype)]
        rows, columns = self.source.shape
        base = self.name.removesuffix("weight")
        return [Outline(base + part, *facts) for part, facts in self.scheme.shapes(rows, columns).items()]

    def write(self, writer: TensorWriter) -> None:
        """Read it, quantise it, write it."""
        if self.scheme is None:
            writer.write(self.name, self.source.read())
            return
        parts = self.scheme.encode(self.source.read(), self.source.name)
        for part, tensor in parts.items():
            writer.write(self.name.removesuffix("weight") + part, tensor)


@dataclass(frozen=True)
class Saving:
    """What is written: all items, and what the config will say. `save` does it."""

    checkpoint: Checkpoint
    stored: StoredQuantization
    items: list[Item]
    scheme: Scheme

    @classmethod
    def of(cls, folder: Path, stored: StoredQuantization) -> "Saving":
        """Plan it. Raises `MinferError` for a folder that is no unquantised model."""
        checkpoint = Checkpoint(folder)
        if checkpoint.config.quantization is not None:
            raise CheckpointError(f"{folder} is stored as {checkpoint.config.quantization.scheme} already")
        model, scheme = skeleton(checkpoint), find_scheme(stored.scheme, stored.group_size)
        plan = checkpoint.plan(model)
        quantized = {f"{name}.weight" for name in linear_names(model, stored.quantize_head)}
        prefix = model.file_prefix
        items = [
            Item(name if name.startswith(HEAD) else prefix + name, source, scheme if name in quantized else None)
            for name, source in plan.items()
        ]
        tied = f"{HEAD}.weight" in quantized - plan.keys()
        if tied:
            items.append(Item(f"{HEAD}.weight", plan[_embedding(model)], scheme))
        return cls(checkpoint, stored, items, scheme)

    @property
    def quantized(self) -> list[Item]:
        """The items that become codes."""
        return [item for item in self.items if item.scheme is not None]

    @property
    def parameters(self) -> int:
        """How many weights become codes."""
        return sum(prod(item.source.shape) for item in self.quantized)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and their scales."""
        return sum(outline.nbytes for item in self.quantized for outline in item.outlines)

    @property
    def nbytes_in_all(self) -> int:
        """Bytes of all tensors of the new file."""
        return sum(outline.nbytes for item in self.items for outline in item.outlines)

    def save(self, out: Path, done: Callable[[float], None] = lambda fraction: None) -> None:
        """Write the folder `out`, which appears whole or not at all; `done` hears how far it is.

        Beside a tensor and its codes nothing is held in memory. Raises `CheckpointError` if `out` exists, or cannot be
        written.
        """
        with staging(out) as folder:
            self._copy_files(folder)
            self._write_config(folder)
            total, so_far = sum(item.source.nbytes for item in self.items), 0
            outlines = [outline for item in self.items for outline in item.outlines]
            with TensorWriter(folder / SINGLE, outlines) as writer, torch.no_grad():
                for item in self.items:
                    item.write(writer)
                    so_far += item.source.nbytes
                    done(so_far / total)

    def _copy_files(self, folder: Path) -> None:
        for pattern in COPIED:
            for file in self.checkpoint.folder.glob(pattern):
                if file.is_file() and not file.name.endswith(".index.json"):
                    shutil.copyfile(file, folder / file.name)

    def _write_config(self, folder: Path) -> None:
        facts = json.loads((self.checkpoint.folder / "config.json").read_text(encoding="utf-8"))
        if self.stored.quantize_head:
            facts["tie_word_embeddings"] = False
        facts[KEY] = self.stored.to_facts()
        (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _embedding(model: torch.nn.Module) -> str:
    """The name of the parameter that the head is tied to."""
    head = model.get_submodule(HEAD).weight
    return next(name for name, parameter in model.named_parameters() if parameter is head)


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """An empty folder beside `out` that becomes it if the block succeeds, and vanishes otherwise."""
    if out.exists() or out.is_symlink():
        raise CheckpointError(f"{out} exists: remove it, or name another folder")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise CheckpointError(f"cannot make {out}: there is no folder {parent}")
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{out.name}-", ignore_cleanup_errors=True) as work:
            folder = Path(work) / "model"
            folder.mkdir()
            yield folder
            os.rename(folder, out)
    except OSError as error:
        free = shutil.disk_usage(parent).free / 1e6
        raise CheckpointError(f"could not write {out} ({free:.0f} MB free): {error}") from error
