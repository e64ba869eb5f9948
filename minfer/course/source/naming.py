"""Naming: what everything is called in one file that is made of several modules, where two may have meant one name."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from minfer.course.source.library import Definition
from minfer.course.source.module import Imported, Module

Meaning = Definition | Imported


class Naming:
    """Each import and each definition gets one name; it is its own, unless that is taken.

    `meaning` says what a name of a module means; `fixed` gives definitions a name that they do not choose.
    """

    def __init__(
        self,
        meaning: Callable[[Module, str], Meaning | None],
        imports: Iterable[Imported],
        own: list[Definition],
        fixed: Mapping[Meaning, str],
    ) -> None:
        self.meaning = meaning
        self.names: dict[Meaning, str] = {}
        aliases: dict[tuple[str, str], str] = {}
        for one in sorted(imports, key=lambda one: (not one.module.startswith("minfer"), one.what, one.alias)):
            alias = longer(one.module, one.alias) if one.alias in self.names.values() else one.alias
            self.names[one] = aliases.setdefault(one.what, alias)
        self.imports = [replace(one, alias=name) for one, name in self.names.items() if isinstance(one, Imported)]
        count = Counter([*self.names.values(), *(one.name for one in own)])
        self.names |= {one: one.name if count[one.name] == 1 else longer(one.module.name, one.name) for one in own}
        self.names |= fixed

    def changed_in(self, user: Module) -> dict[str, str]:
        """The module's names that are others in the file."""
        meant = {name: self.meaning(user, name) for name in [*user.defined, *user.imports]}
        return {name: self.names[one] for name, one in meant.items() if one in self.names and self.names[one] != name}


def longer(module: str, name: str) -> str:
    """What a name that another module has too is called: Kernel of phase11/profile.py is ProfileKernel."""
    leaf = module.rpartition(".")[2]
    if name.isupper():
        return f"{leaf.upper()}_{name}"
    return "".join(map(str.capitalize, leaf.split("_"))) + name if name[0].isupper() else f"{name}_of_{leaf}"
