"""Grading: what one run of pytest grades, and under which conditions."""

import importlib
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path

from minfer.course.loading import Refused, Target

GRADED = "minfer-graded"
"""The name under which a plugin object brings the class that is graded into a `pytest.main` of its own process."""

FOLDER = re.compile(r"phase(\d+)")


class Graded:
    """`pytest.main([...], plugins=[Graded(cls)])` grades a class that is in memory."""

    def __init__(self, engine_cls: type) -> None:
        self.engine_cls = engine_cls
        self.__name__ = GRADED  # the name that pytest registers it under


@dataclass
class Grading:
    """What one run grades: `spec` names a file or module, `given` is a class in memory; neither: the reference."""

    spec: str | None
    given: type | None
    seed: int
    loaded: dict[int, type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = Target.parse(self.spec) if self.spec and self.given is None else None
        self.described = self._describe()

    @property
    def is_reference(self) -> bool:
        """Whether no student's work is graded."""
        return self.given is None and (self.target is None or self.target.is_reference)

    def describe(self) -> str:
        """What is graded, in words."""
        return self.described

    def _describe(self) -> str:
        if self.given is not None:
            return f"a class in memory: {in_words(self.given)}"
        return self.target.describe() if self.target else "the REFERENCE: minfer.phaseN.Engine for tests/phaseN"

    def engine_cls(self, phase: int) -> type:
        """The class, to be graded as `phase`. Raises `Refused`."""
        if self.given is not None:
            return self.given
        if phase not in self.loaded:
            self.loaded[phase] = self.target.load(phase) if self.target else reference(phase)
        return self.loaded[phase]


def reference(phase: int) -> type:
    """`minfer.phaseN.Engine`."""
    return importlib.import_module(f"minfer.phase{phase}").Engine


def phase_of(path: Path) -> int:
    """N of a test in `tests/phaseN`. Raises `Refused` elsewhere: there the engine's phase is not known."""
    for part in reversed(path.parts):
        if match := FOLDER.fullmatch(part):
            return int(match[1])
    raise Refused(f"{path} asks for engine_cls, but is in no folder tests/phaseN, which says which phase is graded")


def in_words(engine_cls: type) -> str:
    """Class, file and line."""
    bases = ", ".join(f"{base.__module__}.{base.__qualname__}" for base in engine_cls.__bases__)
    try:
        file, line = inspect.getsourcefile(engine_cls), inspect.getsourcelines(engine_cls)[1]
    except (OSError, TypeError):  # made in a notebook, or by type()
        return f"{engine_cls.__qualname__} (base {bases})"
    return f"{engine_cls.__qualname__} ({file}, line {line}, base {bases})"
