"""Library: the modules of minfer's phases, read once; and where a name that one of them uses is defined."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import minfer
from minfer.core.errors import MinferError
from minfer.course.source.module import Imported, Module, Statement

PHASE = re.compile(r"minfer\.phase(\d+)")
PACKAGE = Path(minfer.__file__).parent


@dataclass(frozen=True)
class Definition:
    """A name and the module that defines it."""

    module: Module
    name: str

    @property
    def statement(self) -> Statement:
        """The statement that does."""
        return self.module.defined[self.name]


@cache
def module(name: str) -> Module:
    """A module of minfer by its full name; of a package, its `__init__`. Raises `MinferError` if there is none."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        raise MinferError(f"there is no module {name}: no file {path}")
    return Module.read(name, path)


def phases() -> list[int]:
    """The phases that are here, by number."""
    found = [int(path.parent.name[5:]) for path in PACKAGE.glob("phase*/engine.py")]
    return sorted(found)


def check_phase(phase: int) -> None:
    """Raise `MinferError` for a phase that is not here."""
    if phase not in phases():
        raise MinferError(f"there is no phase {phase}: choose one of {', '.join(map(str, phases()))}")


def modules_of(phase: int) -> list[Module]:
    """All modules of a phase but its `__init__`, by name."""
    paths = sorted((PACKAGE / f"phase{phase}").glob("*.py"))
    return [module(f"minfer.phase{phase}.{path.stem}") for path in paths if path.stem != "__init__"]


def find(user: Module, name: str) -> Definition | Imported | None:
    """Where `name`, as `user` uses it, is defined: within the phases, or imported from elsewhere; None: built in."""
    if name in user.defined:
        return Definition(user, name)
    imported = user.imports.get(name)
    if imported is None or imported.name is None or not PHASE.match(imported.module):
        return imported
    return find(module(imported.module), imported.name)


def phase_of(name: str) -> int:
    """N of a module in minfer.phaseN; 0 for others."""
    match = PHASE.match(name)
    return int(match[1]) if match else 0
