"""Checkpoint: where each parameter of a model is stored, found and checked before any tensor is read.

    checkpoint = Checkpoint(folder)                # config.json and the files' headers
    plan = checkpoint.plan(model)                  # every mismatch is an error here
    for name, parameter in model.named_parameters():
        plan[name].read_into(parameter)            # one tensor at a time

Only safetensors files are read: a header of JSON, then raw numbers, so nothing in them can run.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from minfer.core.checkpoint.tensor_source import StoredTensor, TensorSource
from minfer.core.checkpoint.weight_files import CODES, DTYPES, INDEX, SINGLE, FileEntry, read_entries, some
from minfer.core.config import ModelConfig
from minfer.core.errors import CheckpointError, MinferWarning
from minfer.core.stored_quantization import PARTS


class LoadableModel(Protocol):
    """What a model says about its files: `Transformer` and `GPT2` do."""

    file_prefix: str
    """Files name a parameter as we do, or with this in front."""
    ignored_in_file: tuple[str, ...]
    """Patterns of tensors in files that are no parameters."""

    def stored_transposed(self, name: str) -> bool:
        """Whether files hold this parameter as (in, out)."""
        ...

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As `nn.Module.named_parameters`."""
        ...


class Checkpoint:
    """A folder with `config.json` and weights in `model.safetensors` or in the shards that its index names.

    Making one reads the configuration and the headers, no tensor. Raises `CheckpointError` or `ConfigError`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.entries = read_entries(self.folder)
        self.config = ModelConfig.from_folder(self.folder)
        if (self.folder / INDEX).is_file() and (self.folder / SINGLE).is_file() and SINGLE not in self.file_names:
            message = f"{self.folder}: {SINGLE} is not read, because {INDEX} names other files"
            warnings.warn(message, MinferWarning, stacklevel=2)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names as the files have them."""
        return tuple(self.entries)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The files that hold the weights."""
        return tuple(sorted({entry.file.name for entry in self.entries.values()}))

    @property
    def nbytes(self) -> int:
        """The bytes of all usable tensors as stored."""
        known = DTYPES | CODES
        return sum(prod(e.shape) * known[e.dtype].itemsize for e in self.entries.values() if e.dtype in known)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that most of the numbers are stored in; those of quantised weights do not count."""
        numbers: Counter[str] = Counter()
        for entry in self.entries.values():
            if not self._is_part(entry):
                numbers[entry.dtype] += prod(entry.shape)
        usable = [name for name, _ in numbers.most_common() if name in DTYPES]
        if not usable:
            raise CheckpointError(f"{self.folder} stores only {', '.join(numbers) or 'nothing'}: not a float model")
        return DTYPES[usable[0]]

    def _is_part(self, entry: FileEntry) -> bool:
        """Whether this is a tensor of a quantised weight."""
        return self.config.quantization is not None and entry.name.rpartition(".")[2] in PARTS

    def plan(self, model: LoadableModel) -> dict[str, TensorSource]:
        """Where each of `model.named_parameters()` is stored, by the parameter's name.

        `model` is a `Transformer` or a `GPT2` of this checkpoint's config; its parameters, which may be on `meta`, are
        not touched. Raises `CheckpointError` that names what is missing, unexpected, stored twice, of another shape or
        of a dtype that is no plain float, and a stored head that differs from the embedding it is tied to.
        """
        ignored = re.compile("|".join(f"(?:{pattern})" for pattern in model.ignored_in_file) or r"$^")
        entries = {name: entry for name, entry in self.entries.items() if not ignored.search(name)}
        self._refuse_quantised(model, entries)
        stored_as = _stored_names(model, entries)
        self._refuse_misfits(model, entries, stored_as)
        plan: dict[str, TensorSource] = {}
        for name, file_names in stored_as.items():
            first, *copies = (_stored(model, name, entries[file_name]) for file_name in file_names)
            for copy in copies:
                first.refuse_unequal(copy)
            plan[name] = first
        return plan

    def _refuse_quantised(self, model: LoadableModel, entries: dict[str, FileEntry]) -> None:
        """Codes are welcome only where the config says that minfer wrote them, and the model is made for them."""
        odd = [
            f"{entry.name} ({entry.dtype})"
            for entry in entries.values()
            if entry.dtype not in DTYPES and not (self._is_part(entry) and entry.dtype in CODES)
        ]
        if odd:
            raise CheckpointError(
                f"{self.folder} is a quantised checkpoint, or not of a language model: {len(odd)} tensors are stored "
                f"neither as float64, float32, float16 nor bfloat16: {some(odd)}; use the model's unquantised release"
            )
        stored = self.config.quantization
        if stored is not None and not any(name.endswith(f".{PARTS[0]}") for name, _ in model.named_parameters()):
            raise CheckpointError(
                f"{self.folder} is stored quantised as {stored.scheme}: load it with phase 6 or later, or use the "
                "model that it was made from"
            )

    def _refuse_misfits(
        self, model: LoadableModel, entries: dict[str, FileEntry], stored_as: dict[str, list[str]]
    ) -> None:
        """One error for all that does not fit, since a renamed tensor is both missing and unexpected."""
        missing = [name for name, file_names in stored_as.items() if not file_names]
        unexpected = sorted(entries.keys() - {name for file_names in stored_as.values() for name in file_names})
        misshapen = [
            f"{file_name} in {entries[file_name].file.name} is {entries[file_name].shape}, not {expected}"
            for name, parameter in model.named_parameters()
            for file_name in stored_as[name]
            if (expected := _shape_in_file(model, name, parameter)) != entries[file_name].shape
        ]
        recoded = [
            f"{file_name} in {entries[file_name].file.name} is {entries[file_name].dtype}, not {parameter.dtype}"
            for name, parameter in model.named_parameters()
            for file_name in stored_as[name]
            if self._is_part(entries[file_name]) and _dtype(entries[file_name]) != parameter.dtype
        ]
        kinds = (
            ("of the wrong dtype", recoded),
            ("missing", missing),
            ("unexpected", unexpected),
            ("of the wrong shape", misshapen),
        )
        problems = [f"{len(names)} {kind}: {some(names)}" for kind, names in kinds if names]
        if problems:
            untied = missing == ["lm_head.weight"]
            hint = " (tie_word_embeddings is false: is the head tied after all?)" if untied else ""
            raise CheckpointError(
                f"{self.folder} ({some(list(self.file_names))}) does not fit its config.json, a "
                f"{self.config.architecture}: of the tensors, {'; '.join(problems)}{hint}"
            )


def _stored_names(model: LoadableModel, entries: dict[str, FileEntry]) -> dict[str, list[str]]:
    """Parameter name -> its names in the files: none, one, or several if it is tied and stored more than once."""
    owners: dict[int, str] = {}
    stored_as: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found = [file_name for file_name in (name, model.file_prefix + name) if file_name in entries]
        stored_as.setdefault(owners.setdefault(id(parameter), name), []).extend(found)
    return stored_as


def _shape_in_file(model: LoadableModel, name: str, parameter: Tensor) -> tuple[int, ...]:
    shape = tuple(parameter.shape)
    return shape[::-1] if model.stored_transposed(name) else shape


def _stored(model: LoadableModel, name: str, entry: FileEntry) -> StoredTensor:
    transposed = model.stored_transposed(name)
    shape = entry.shape[::-1] if transposed else entry.shape
    return StoredTensor(name, shape, _dtype(entry), entry.file, entry.name, transposed)


def _dtype(entry: FileEntry) -> torch.dtype:
    return (DTYPES | CODES)[entry.dtype]
