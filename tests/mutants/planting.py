"""Planted bugs: each is an engine with one mistake of the catalogue, and a probe that shows the mistake is there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """An engine with the mistake `code`. `probe(engine_cls, lab)` has another outcome than with the reference.

    `crashes`: the mistake ends in an exception of its own, not in a wrong answer that the test can describe.
    """

    code: str
    phase: int
    engine_cls: type
    probe: Callable[[type, Any], Any]
    crashes: bool = False

    @property
    def name(self) -> str:
        return f"{self.code}-{self.engine_cls.__name__}"


@dataclass
class Mutants:
    """The mutants of one phase, in the order of their planting; all build on the phase's reference."""

    phase: int
    planted: list[Mutant] = field(default_factory=list)

    def plant(self, code: str, probe: Callable[[type, Any], Any], crashes: bool = False) -> Callable[[type], type]:
        """Register the decorated engine class as one with the mistake `code`."""

        def register(engine_cls: type) -> type:
            self.planted.append(Mutant(code, self.phase, engine_cls, probe, crashes))
            return engine_cls

        return register
