"""Hooks: which phase overrides which of the methods that phase 1's Engine has."""

from minfer.course.source.library import phases
from minfer.course.source.lineage import CONSTRUCTOR, Lineage

FIRST = 1
DEFINES, OVERRIDES, OWN = "•", "●", " "


def hooks() -> dict[str, list[int]]:
    """Method of phase 1 that is overridden -> the phases that define it; in the order of phase 1."""
    lineages = [Lineage.of(phase) for phase in phases()]
    names = [name for name, one in Lineage.of(FIRST).youngest.members.items() if one.is_method and name != CONSTRUCTOR]
    found = {name: [one.youngest.phase for one in lineages if name in one.own(one.youngest.phase)] for name in names}
    return {name: where for name, where in found.items() if len(where) > 1}


def later_methods() -> dict[str, list[int]]:
    """Methods that a later phase brought, and that phases after it override."""
    first = Lineage.of(FIRST).youngest.members
    where: dict[str, list[int]] = {}
    for phase in phases():
        for name, member in Lineage.of(phase).own(phase).items():
            if member.is_method and name not in first:
                where.setdefault(name, []).append(phase)
    return {name: found for name, found in where.items() if len(found) > 1}


def markdown() -> str:
    """Both as a table; the first mark of a row is where the method comes from."""
    numbers = phases()
    head = ["| | " + " | ".join(map(str, numbers)) + " |", "|---|" + ":-:|" * len(numbers)]
    return "\n".join([*head, *(f"| `{name}` | {' | '.join(row)} |" for name, row in rows().items())]) + "\n"


def rows() -> dict[str, list[str]]:
    """Method -> a mark for each phase: where it comes from, where it is overridden."""
    made = {}
    for name, where in {**hooks(), **later_methods()}.items():
        marks = {phase: DEFINES if phase == where[0] else OVERRIDES for phase in where}
        made[name] = [marks.get(phase, OWN) for phase in phases()]
    return made
