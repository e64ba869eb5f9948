"""Refusals: what cannot be graded, since its grade would not be its author's own, or would say nothing."""

import difflib
import inspect
from pathlib import Path

from minfer.course.source.outline import PHASE, Outline

CLOSE = 0.76
"""How alike a method's name must be to a hook's to be taken for a misspelling of it (difflib's ratio)."""


class Refused(Exception):
    """What was named cannot be graded; the message is for its author."""


def refuse_syntax_error(outline: Outline) -> None:
    """Raise `Refused` if the file does not parse."""
    if outline.error:
        raise Refused(f"{outline.path}, {outline.place(outline.error.lineno or 1)}: {outline.error.msg}")


def refuse_later_phases(outline: Outline, phase: int) -> None:
    """Raise `Refused` if the file imports the phase that is graded, or a later one, anywhere in its code."""
    for line, number in outline.phases_imported():
        if number >= phase:
            raise Refused(
                f"{outline.path}, {outline.place(line)}: minfer.phase{number} is the answer to what is graded "
                f"(phase {phase}); build on minfer.phase{phase - 1}"
                + ("" if phase > 1 else " … that is, on minfer.core")
            )


def refuse_ancestors(engine_cls: type, phase: int, path: Path) -> None:
    """Raise `Refused` if the class inherits from the phase that is graded, or a later one, by whatever way."""
    for ancestor in engine_cls.__mro__:
        match = PHASE.match(ancestor.__module__)
        if match and int(match[1]) >= phase:
            where = f"{ancestor.__module__}.{ancestor.__name__}"
            raise Refused(f"{path}: {engine_cls.__name__} inherits from {where}, the answer to phase {phase}")


def refuse_nothing_new(engine_cls: type, path: Path) -> None:
    """Raise `Refused` if the class changes nothing of the phase that it builds on, whose engine passes most tests."""
    phases = [cls for cls in engine_cls.__mro__ if PHASE.match(cls.__module__)]
    own = {name for cls in _own_classes(engine_cls) for name in vars(cls)}
    changed = {name for name in own if name == "__init__" or not name.startswith("__")}
    if phases and not any(name in vars(cls) for cls in phases for name in changed):
        before = PHASE.match(phases[0].__module__)[0]  # type: ignore[index]
        raise Refused(f"{path}: {engine_cls.__name__} overrides nothing of {before}.Engine: there is nothing to grade")


def refuse_misspelt_hooks(engine_cls: type, outline: Outline) -> None:
    """Raise `Refused` if a method looks like a hook, overrides none, and is used nowhere in the file.

    Such a method never runs: the inherited hook does, and every test of the phase before passes.
    """
    own = _own_classes(engine_cls)
    hooks = {name for cls in engine_cls.__mro__ if cls not in own for name in vars(cls) if not name.startswith("_")}
    defined = {name for cls in own for name, value in vars(cls).items() if inspect.isroutine(value) or _wraps(value)}
    for name in sorted(defined - hooks - outline.attributes_used()):
        close = difflib.get_close_matches(name, sorted(hooks), n=1, cutoff=CLOSE)
        if close and close[0] not in defined and not name.startswith("__"):
            raise Refused(
                f"{outline.path}: the method {name!r} overrides nothing and is used nowhere; did you mean "
                f"{close[0]!r}? (rename it, or the inherited {close[0]} runs instead)"
            )


def _own_classes(engine_cls: type) -> list[type]:
    """The class and those of its ancestors that no phase has."""
    return [cls for cls in engine_cls.__mro__ if not PHASE.match(cls.__module__) and cls is not object]


def _wraps(value: object) -> bool:
    return isinstance(value, classmethod | staticmethod | property)
