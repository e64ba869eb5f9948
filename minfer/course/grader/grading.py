"""Grading: what one run of pytest grades, and under which conditions."""

import importlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minfer.course.grader.loading import Target
from minfer.course.grader.refusals import Refused

GRADED = "minfer-graded"
"""The name under which a plugin object brings the class that is graded into a `pytest.main` of its own process."""

FOLDER = re.compile(r"phase(\d+)")


class Graded:
    """`pytest.main([...], plugins=[Graded(cls)])` grades a class that is in memory.

    `asks_suspects`: whether planted mistakes are tried on what fails; not when the class is one of them itself.
    """

    def __init__(self, engine_cls: type, asks_suspects: bool = False) -> None:
        self.engine_cls, self.asks_suspects = engine_cls, asks_suspects
        self.__name__ = GRADED  # the name that pytest registers it under


@dataclass
class Grading:
    """What one run grades: `spec` names a file, folder or module, `given` is a class in memory; neither: the reference.

    `phases` are those whose tests were named, `hidden` a folder of more tests.
    """

    spec: str | None
    given: Graded | None
    seed: int
    phases: Sequence[int] = ()
    hidden: Path | None = None
    loaded: dict[int, type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = Target.parse(self.spec) if self.spec and self.given is None else None
        self.targets = [self.target.at(n) for n in self.phases or (0,)] if self.target else []
        self.described = self._describe()

    @property
    def is_reference(self) -> bool:
        """Whether no student's work is graded."""
        return self.given is None and (self.target is None or self.target.is_reference)

    @property
    def asks_suspects(self) -> bool:
        """Whether planted mistakes are tried on what fails."""
        return not self.is_reference and (self.given is None or self.given.asks_suspects)

    @property
    def identity(self) -> dict[str, str]:
        """What is graded, for a report."""
        about = {"spec": self.spec or "", "described": self.described, "sha": "-".join(t.sha for t in self.targets)}
        return about | ({"file": str(self.targets[0].path())} if len(self.targets) == 1 else {})

    def describe(self) -> str:
        """What is graded, in words."""
        return self.described

    def _describe(self) -> str:
        if self.given is not None:
            return f"a class in memory: {in_words(self.given.engine_cls)}"
        if self.target is None:
            return "the REFERENCE: minfer.phaseN.Engine for tests/phaseN"
        return "; ".join(target.describe() for target in self.targets)

    def read(self, phase: int) -> None:
        """Look at what is graded as `phase`, which takes no time. Raises `Refused`."""
        if self.target is not None:
            self.target.at(phase).read(phase)

    def engine_cls(self, phase: int) -> type:
        """The class, to be graded as `phase`. Raises `Refused`."""
        if self.given is not None:
            return self.given.engine_cls
        if phase not in self.loaded:
            self.loaded[phase] = self.target.at(phase).load(phase) if self.target else reference(phase)
        return self.loaded[phase]

    def phase_of(self, path: Path) -> int:
        """The phase whose test the file is; a hidden one that is in no folder phaseN is of the one that is graded."""
        if self.hidden is not None and path.is_relative_to(self.hidden) and len(self.phases) == 1:
            inside = path.relative_to(self.hidden)
            return phase_of(inside) if FOLDER.search(str(inside.parent)) else self.phases[0]
        return phase_of(path)


def reference(phase: int) -> type:
    """`minfer.phaseN.Engine`."""
    return importlib.import_module(f"minfer.phase{phase}").Engine


def phase_of(path: Path) -> int:
    """N of a test in `tests/phaseN`. Raises `Refused` elsewhere: there the engine's phase is not known."""
    for part in reversed(path.parts):
        if match := FOLDER.fullmatch(part):
            return int(match[1])
    raise Refused(f"{path} asks for engine_cls, but is in no folder tests/phaseN, which says which phase is graded")


def phases_named(arguments: Sequence[str]) -> list[int]:
    """The phases whose folders are among pytest's arguments, in order."""
    found = (FOLDER.fullmatch(part) for argument in arguments for part in Path(argument.partition("::")[0]).parts)
    return sorted({int(match[1]) for match in found if match})


def in_words(engine_cls: type) -> str:
    """Class, file and line."""
    bases = ", ".join(f"{base.__module__}.{base.__qualname__}" for base in engine_cls.__bases__)
    try:
        file, line = inspect.getsourcefile(engine_cls), inspect.getsourcelines(engine_cls)[1]
    except (OSError, TypeError):  # made in a notebook, or by type()
        return f"{engine_cls.__qualname__} (base {bases})"
    return f"{engine_cls.__qualname__} ({file}, line {line}, base {bases})"
