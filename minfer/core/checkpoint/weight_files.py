"""Which files of a folder hold its weights, and what their headers say. No tensor data is read here."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from minfer.core.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
LONGEST = 255  # characters that a system lets a file's name have
LFS_POINTER = b"version https://git-lfs"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""The dtypes of plain weights, as safetensors names them."""
CODES = {"I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}
"""Those that only the codes of a quantised model may have."""


@dataclass(frozen=True)
class FileEntry:
    """One tensor in a safetensors file; `dtype` in the file's own words ("F32", "I8")."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str


def read_entries(folder: Path) -> dict[str, FileEntry]:
    """Every tensor of the folder's checkpoint by its name in the files. Raises `CheckpointError`."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    index = read_index(folder / INDEX) if (folder / INDEX).is_file() else None
    files = [folder / SINGLE] if index is None else sorted({folder / file for file in index.values()})
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(_no_weights(folder) if index is None else _missing_shards(folder, missing))
    entries: dict[str, FileEntry] = {}
    for file in files:
        for entry in read_header(file):
            if entry.name in entries:
                twice = f"{entries[entry.name].file.name} and {file.name}"
                raise CheckpointError(f"{folder}: tensor {entry.name} is in both {twice}: download the model again")
            entries[entry.name] = entry
    _check_index(folder, index or {}, entries)
    return entries


def read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name, from an index; only plain names of files beside it are accepted."""
    refuse_lfs_pointer(path)
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not an index with a weight_map ({error!r}): download it again") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map is not an object that names tensors: download it again")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or "\\" in file or len(file) > LONGEST:
            raise CheckpointError(
                f"{path} places tensor {tensor} in {file!r}, which is not the name of a file in the same folder: "
                "do not trust this model"
            )
    return weight_map


def read_header(file: Path) -> list[FileEntry]:
    """The tensors of one safetensors file. Raises `CheckpointError` for a damaged one."""
    refuse_lfs_pointer(file)
    try:
        with safe_open(file, framework="pt") as opened:
            slices = ((name, opened.get_slice(name)) for name in opened.keys())  # noqa: SIM118 (not a dict)
            return [FileEntry(name, file, tuple(part.get_shape()), part.get_dtype()) for name, part in slices]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is truncated or not a safetensors file ({error}): download it again"
        ) from error


def refuse_lfs_pointer(file: Path) -> None:
    """Raise `CheckpointError` if `file` is the text that Git keeps in place of a large file."""
    with file.open("rb") as stream:
        start = stream.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        raise CheckpointError(
            f"{file} is a Git LFS pointer of {file.stat().st_size} bytes, not the file itself: run `git lfs pull` in "
            "its repository"
        )


def some(names: list[str], limit: int = 3) -> str:
    """`names` for a message: all of them, or the first few and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _check_index(folder: Path, index: dict[str, str], entries: dict[str, FileEntry]) -> None:
    absent = [name for name, file in index.items() if name not in entries or entries[name].file.name != file]
    if absent:
        raise CheckpointError(
            f"{folder / INDEX} names {len(absent)} tensors that their files lack: "
            f"{some([f'{name} in {index[name]}' for name in absent])}; index and shards are of different downloads"
        )


def _missing_shards(folder: Path, missing: list[str]) -> str:
    return f"{folder} lacks {len(missing)} files that {INDEX} names: {some(missing)}; download them"


def _no_weights(folder: Path) -> str:
    """What is in the folder in place of weights, and what to do about it."""
    files = sorted(path.name for path in folder.iterdir())
    if SINGLE in files:
        return f"{folder / SINGLE} is not a file that can be read, but a folder, a pipe or a broken link: replace it"
    if not files:
        return f"{folder} is empty: a model folder holds config.json, {SINGLE} and a tokenizer"
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if others:
        return (
            f"{folder} has neither {SINGLE} nor {INDEX}, but {some(others)}: download the missing index, or rename "
            f"a single file to {SINGLE}"
        )
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} has only pickled weights ({some(pickles)}), which can run code when read; minfer reads "
            'safetensors only. Convert them where you trust them: python -c "from transformers import '
            f"AutoModelForCausalLM as M; M.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    return f"{folder} holds no weights ({SINGLE} or {INDEX}), only {some(files)}"
