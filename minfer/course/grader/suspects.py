"""Suspects: planted mistakes whose engine gives, on the very same test, what the graded engine gave."""

import importlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from minfer.course.grader.guards import Forbidden, time_limit
from minfer.course.marks.verdict import Mismatch

SECONDS = 10  # for one mutant
TELLING = 3  # items that evidence has at least: two engines agree on less by chance
SAME = 1e-9  # two float64 computations of the same mistake differ by less, two mistakes by more
CATALOGUE = "tests.mutants.catalogue"


@lru_cache
def planted(phase: int) -> tuple[Any, ...]:
    """The mutants of `phase` and of those before it; none where the course's tests are handed out without them."""
    try:
        return tuple(importlib.import_module(CATALOGUE).up_to(phase))
    except ModuleNotFoundError as error:
        if error.name is not None and CATALOGUE.startswith(error.name):
            return ()
        raise


class Suspects:
    """Finds who did it. Remembers who was found: one mistake makes several tests fail."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def of(
        self,
        test: Callable[..., Any],
        arguments: Mapping[str, Any],
        new_lab: Callable[[], Any],
        mismatch: Mismatch,
        phase: int,
    ) -> tuple[str, ...]:
        """The names of the mutants of `phase`, or an earlier one, that fail `test` with the same evidence."""
        if not is_telling(mismatch.evidence):
            return ()
        own = [mutant for mutant in planted(phase) if mutant.code == mismatch.code]
        known = [mutant for mutant in self.found if mutant not in own]
        guilty = [m for m in [*own, *known] if self._fails_alike(m, test, arguments, new_lab(), mismatch)]
        self.found += [mutant for mutant in guilty if mutant not in self.found]
        return tuple(f"{mutant.code} {in_words(mutant.engine_cls.__name__)}" for mutant in guilty)

    def _fails_alike(
        self, mutant: Any, test: Callable[..., Any], arguments: Mapping[str, Any], lab: Any, mismatch: Mismatch
    ) -> bool:
        try:
            with time_limit(SECONDS, "a mutant takes too long"):
                test(**{**arguments, "engine_cls": mutant.engine_cls, "lab": lab})
        except Mismatch as other:
            return (other.code, other.did) == (mismatch.code, mismatch.did) and same(other.evidence, mismatch.evidence)
        except (Exception, Forbidden):
            return False
        return False


def in_words(name: str) -> str:
    """ "positions from zero" of `PositionsFromZero`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()


def is_telling(evidence: Any) -> bool:
    """Whether an engine without the mistake would hardly give the same."""
    if isinstance(evidence, np.ndarray):
        return evidence.size >= TELLING
    return isinstance(evidence, list | tuple | str) and len(evidence) >= TELLING


def same(one: Any, other: Any) -> bool:
    """Whether two pieces of evidence are the same."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(np.allclose(one, other, rtol=0, atol=SAME, equal_nan=True))
    return type(one) is type(other) and bool(one == other)
