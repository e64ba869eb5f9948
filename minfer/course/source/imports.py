"""Imports written as the project's style has them: the standard library, other packages, minfer; sorted, 120 columns."""

import sys
from collections import defaultdict
from collections.abc import Iterable

from minfer.course.source.module import Imported

WIDTH = 120


def import_block(imports: Iterable[Imported]) -> str:
    """The lines that import all of these, each once."""
    sections: dict[int, list[str]] = defaultdict(list)
    plain = sorted({(one.module, one.alias) for one in imports if one.name is None})
    for module, alias in plain:
        sections[_section(module)].append(f"import {module}" + (f" as {alias}" if alias != module else ""))
    members: dict[tuple[str, bool], set[tuple[str, str]]] = defaultdict(set)
    for one in imports:
        if one.name is not None:
            members[one.module, one.alias != one.name].add((one.name, one.alias))
    for (module, renamed), names in sorted(members.items(), key=lambda item: (_order(item[0][0]), item[0][1])):
        if renamed:  # each on a line of its own
            lines = [f"from {module} import {name} as {alias}" for name, alias in sorted(names)]
        else:
            lines = [_from(module, sorted({name for name, _ in names}, key=_kind))]
        sections[_section(module)] += lines
    return "\n\n".join("\n".join(sections[number]) for number in sorted(sections))


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _section(module: str) -> int:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return 0
    return 2 if top == "minfer" or top.endswith("_given") else 1


def _kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _order(module: str) -> tuple[tuple[int, str], ...]:
    """As a person counts: phase2 before phase10."""
    return tuple((int("".join(filter(str.isdigit, part)) or 0), part) for part in module.split("."))
