"""Names of models -> folders: the embedded one, those pulled before, and any folder."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from minfer.core.errors import CheckpointError, did_you_mean
from minfer.core.hub.published import SHAPES

EMBEDDED = "tiny"
RANDOM = "random:"
PULLABLE = "smollm2"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class InstalledModel:
    """A model that is here now: `name` is what `resolve` takes, `size` counts the folder's bytes."""

    name: str
    folder: Path
    size: int
    architecture: str


def cache_folder() -> Path:
    """Where pulled models live: `$MINFER_HOME`, else `minfer` in `$XDG_CACHE_HOME`, else `~/.cache/minfer`."""
    home = os.environ.get("MINFER_HOME")
    if home:
        return _expanded(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minfer"


def resolve(model: str | Path) -> Path:
    """The folder of `model`: "tiny", a name pulled before, or the path of a folder.

    A name that is known wins over a folder of the same spelling in the current directory; `./tiny` is the folder.
    Raises `CheckpointError` that lists what there is.
    """
    folder = _named_folder(model) if isinstance(model, str) else None
    if folder is not None:
        return folder
    path = _expanded(model)
    if str(model) and os.path.isdir(path):  # Path("") would be the current folder
        return path
    if os.path.isfile(path):
        raise CheckpointError(f"{path} is a file: give the folder that holds it and its config.json")
    raise CheckpointError(_unknown(str(model)))


def installed() -> list[InstalledModel]:
    """The embedded model, if this copy of minfer carries it, then the pulled ones by name."""
    pulled = sorted({config.parent for depth in ("*", "*/*") for config in cache_folder().glob(f"{depth}/config.json")})
    named = [(folder.relative_to(cache_folder()).as_posix(), folder) for folder in pulled]
    named = [(name, folder) for name, folder in named if NAME.fullmatch(name)]  # not a pull under way
    if is_model_folder(embedded_folder()):
        named.insert(0, (EMBEDDED, embedded_folder()))
    return [InstalledModel(name, folder, _size(folder), _architecture(folder)) for name, folder in named]


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a pulled model; names become paths, so nothing like `../x`."""
    if not NAME.fullmatch(name):
        raise CheckpointError(f"{name!r} is not the name of a model: use {PULLABLE!r} or ORG/NAME")


def embedded_folder() -> Path:
    """The folder of the model that ships with minfer."""
    return Path(__file__).parents[2] / "assets" / EMBEDDED


def is_model_folder(folder: Path) -> bool:
    """Whether `folder` looks like a Hugging Face model."""
    return os.path.isfile(folder / "config.json")  # False, where Path.is_file raises, for a name that is too long


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"{str(path)!r} begins with the home of a user who is not known here") from error


def _named_folder(name: str) -> Path | None:
    if name == EMBEDDED:
        if is_model_folder(embedded_folder()):
            return embedded_folder()
        raise CheckpointError("this copy of minfer lacks its embedded model (minfer/assets/tiny): reinstall minfer")
    folder = cache_folder() / name
    return folder if NAME.fullmatch(name) and is_model_folder(folder) else None


def _unknown(name: str) -> str:
    if name.startswith(RANDOM):
        return f"{name} has no folder: it is made of random weights, not read from files"
    names = [model.name for model in installed()]
    candidates = {*names, PULLABLE, *(RANDOM + shape for shape in SHAPES)}
    hint = did_you_mean(name, candidates)
    pull = name if "/" in name and NAME.fullmatch(name) else PULLABLE
    return (
        f"no model {name!r}: it is neither a folder nor a name known here ({', '.join(names) or 'none yet'}){hint}. "
        f"Get one with: minfer pull {pull}"
    )


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _architecture(folder: Path) -> str:
    try:
        names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures")
        return str(names[0])
    except (OSError, ValueError, AttributeError, TypeError, IndexError, KeyError):
        return "unknown"
