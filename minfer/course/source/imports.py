"""Imports in the project's style: the standard library, other packages, minfer; sorted, in 120 columns."""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable

from minfer.course.source.module import Imported

WIDTH = 120
WORDS = re.compile(r"([^\d.]+|\.)(\d*)")


def import_block(imports: Iterable[Imported]) -> str:
    """The lines that import all of these, each once."""
    imports = set(imports)
    sections: dict[int, list[str]] = defaultdict(list)
    plain = sorted({(one.module, one.alias) for one in imports if one.name is None})
    for module, alias in plain:
        sections[_section(module)].append(f"import {module}" + (f" as {alias}" if alias != module else ""))
    members: dict[str, set[str]] = defaultdict(set)
    renamed: set[tuple[str, str, str]] = set()
    for one in imports:
        if one.name is not None and one.alias == one.name:
            members[one.module].add(one.name)
        elif one.name is not None:
            renamed.add((one.module, one.name, one.alias))
    lines = [(module, min(map(_kind, names)), _from(module, names)) for module, names in members.items()]
    lines += [(module, _kind(name), f"from {module} import {name} as {alias}") for module, name, alias in renamed]
    for module, _, line in sorted(lines, key=lambda item: (_order(item[0]), item[1])):
        sections[_section(module)].append(line)
    return "\n\n".join("\n".join(sections[number]) for number in sorted(sections))


def _from(module: str, names: set[str]) -> str:
    ordered = sorted(names, key=_kind)
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in ordered), ")"])


def _section(module: str) -> int:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return 0
    return 2 if top == "minfer" else 1


def _kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _order(module: str) -> list[tuple[str, int]]:
    """As a person counts: phase2 before phase10."""
    return [(text, int(digits or 0)) for text, digits in WORDS.findall(module)]
