"""Flatten: phase N as one file that reads from top to bottom: no class of one phase inherits from another's.

What only earlier phases used is left out: nouns that were replaced, and methods that nothing calls any more.
"""

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from minfer.course.folding import Folding
from minfer.course.source.gather import Gathered
from minfer.course.source.imports import import_block
from minfer.course.source.library import Definition, find, module, phase_of
from minfer.course.source.lineage import CONSTRUCTOR, ENGINE, Ancestor, Lineage, Member, options_of
from minfer.course.source.module import Imported, Module, Statement
from minfer.course.source.names import attributes
from minfer.course.source.rewrite import as_comment, indented, renamed

RULE = 118
"""Columns of a line that opens a section."""


def flatten(phase: int) -> str:
    """The text of a Python file with phase `phase`'s Engine. Raises `MinferError` for a phase that is not there."""
    return Flat(Lineage.of(phase)).text()


class Flat:
    """One phase, with all that it inherits, and the names that its parts have in one file."""

    def __init__(self, lineage: Lineage) -> None:
        self.lineage, self.options = lineage, options_of(lineage)
        classes = [*lineage.ancestors, *self.options.ancestors]
        replaced = frozenset(one.definition for one in classes)
        self.gathered = Gathered(inside=lambda one: bool(phase_of(one.name)), without=replaced)
        self.live = self._live_members()
        for member in [*self._folded(lineage, self.live), *self._folded(self.options, list(self._names(self.options)))]:
            self.gathered.need(member.owner.module, member.statement.node)
        for ancestor in self.options.ancestors[:1]:
            for part in [*ancestor.node.bases, *ancestor.node.decorator_list]:
                self.gathered.need(ancestor.module, part)
        self.names = self._names_by_module()

    # ---- what is in it -------------------------------------------------------------------------------------------

    def _live_members(self) -> list[str]:
        """Members that whoever uses the engine calls, and those that these use, and what these need uses."""
        live = {name for name in self._names(self.lineage) if not self._is_internal(name)}
        while True:
            found = Gathered(self.gathered.inside, self.gathered.without)
            members = self._folded(self.lineage, sorted(live))
            for member in members:
                found.need(member.owner.module, member.statement.node)
            nouns = [statement.node for taken in found.statements.values() for statement in taken]
            used = {name for member in members for name in attributes(member.statement.node)}
            used |= {name for node in nouns for name in attributes(node, of_self=False)}
            more = {name for name in self._names(self.lineage) if name in used} - live
            if not more:
                return [name for name in self._names(self.lineage) if name in live]
            live |= more

    def _is_internal(self, name: str) -> bool:
        """Whether the class that brought a member uses it itself, or it is an attribute: then it lives as long as that."""
        member = self.lineage.versions(name)[0]
        others = [one for one in member.owner.members.values() if one.name != name]
        return not member.is_method or any(name in attributes(one.statement.node) for one in others)

    @staticmethod
    def _names(lineage: Lineage) -> list[str]:
        """The members' names: the oldest class's first, each later one's new ones behind those that they stand behind."""
        names: list[str] = []
        for ancestor in lineage.ancestors:
            place = 0
            for name in ancestor.members:
                if name in names:
                    place = names.index(name) + 1
                else:
                    names.insert(place or len(names), name)
                    place = names.index(name) + 1
        return names

    @staticmethod
    def _folded(lineage: Lineage, names: list[str]) -> list[Member]:
        """The members whose text is in the result."""
        folding = Folding(lineage, lambda member: renamed(member.statement, {}))
        for name in names:
            folding.fold(name)
        return folding.used

    # ---- names ---------------------------------------------------------------------------------------------------

    def _names_by_module(self) -> dict[Module, dict[str, str]]:
        """For each module, the names that differ in the result: aliases, and what two modules call alike."""
        new: dict[Definition | Imported, str] = {}
        aliases: dict[tuple[str, str], str] = {}
        for one in sorted(self.gathered.imports, key=lambda one: (not one.module.startswith("minfer"), one.what)):
            alias = _longer(one.module, one.alias) if one.alias in new.values() else one.alias
            new[one] = aliases.setdefault(one.what, alias)
        self.imports = [replace(one, alias=new[one]) for one in self.gathered.imports]
        own = [(one, name) for one in self.gathered.modules() for s in self.gathered.ordered(one) for name in s.names]
        count = Counter([*new.values(), *(name for _, name in own)])
        new |= {Definition(one, name): name if count[name] == 1 else _longer(one.name, name) for one, name in own}
        for lineage in (self.lineage, self.options):
            new |= {one.definition: lineage.youngest.node.name for one in lineage.ancestors}
        users = {*self.gathered.statements, *(one.module for one in self._classes())}
        return {user: self._names_in(user, new) for user in users}

    @staticmethod
    def _names_in(user: Module, new: dict[Definition | Imported, str]) -> dict[str, str]:
        found = {name: find(user, name) for name in [*user.defined, *user.imports]}
        return {name: new[what] for name, what in found.items() if what in new and new[what] != name}

    def _classes(self) -> list[Ancestor]:
        return [*self.lineage.ancestors, *self.options.ancestors]

    # ---- text ----------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole file."""
        number = self.lineage.youngest.phase
        parts = [f'"""{module(f"minfer.phase{number}").doc}\n\n{_about(number)}\n"""', self._imports()]
        parts += [self._section(one) for one in self.gathered.modules()]
        parts += [self._class(lineage) for lineage in (self.options, self.lineage) if lineage.ancestors]
        return "\n\n\n".join(part.strip("\n") for part in parts).replace('"""\n\n\n', '"""\n\n', 1) + "\n"

    def _imports(self) -> str:
        return import_block(self.imports)

    def _section(self, one: Module) -> str:
        title = f"# ==== {one.name.removeprefix('minfer.').replace('.', '/')}.py "
        about = as_comment(ast.get_docstring(one.tree) or "")
        return f"{title.ljust(RULE, '=')}\n{about}\n\n\n{statements_text(self.gathered.ordered(one), self._text)}"

    def _text(self, statement: Statement) -> str:
        return renamed(statement, self.names.get(statement.module, {}))

    def _class(self, lineage: Lineage) -> str:
        folding = Folding(lineage, lambda member: self._text(member.statement))
        names = self.live if lineage is self.lineage else self._names(lineage)
        members = []
        for name in names:
            used, kept = len(folding.used), set(folding.kept)
            text = folding.fold(name)
            for beside in [one for one in folding.kept if one not in kept]:
                text += f"\n\n# {beside.partition('_of_')[2]}\n{folding.kept[beside]}"
            members.append((lineage.find(name), _provenance(folding.used[used:]), text))
        youngest, oldest = lineage.youngest.node, lineage.ancestors[0]
        decorators = [f"@{ast.unparse(one)}" for one in youngest.decorator_list]
        bases = [ast.unparse(base) for base in oldest.node.bases]
        title = f"class {youngest.name}({', '.join(bases)}):" if bases else f"class {youngest.name}:"
        doc = f'    """{ast.get_docstring(youngest)}"""'
        body = [_attributes([item for item in members if not item[0].is_method])]  # type: ignore[union-attr]
        for member, provenance, text in members:
            assert member is not None
            if member.is_method:
                section = lineage.versions(member.name)[0].section if member.owner.phase else ""
                first = member.name != CONSTRUCTOR and lineage.versions(member.name)[0].owner is oldest
                body.append(f"{section}\n\n" * bool(section and first) + indented(f"# {provenance}\n{text}"))
        return "\n".join([*decorators, title, doc]) + "\n\n" + "\n\n".join(filter(None, body))


def statements_text(statements: list[Statement], text_of: Callable[[Statement], str]) -> str:
    """Statements one after another, with the blank lines that the project's style has between them."""
    made = ""
    before: Statement | None = None
    for statement in statements:
        if before is not None:
            block = any(isinstance(one.node, ast.ClassDef | ast.FunctionDef) for one in (before, statement))
            close = statement.first == before.last + 1
            made += "\n\n\n" if block else "\n" if close else "\n\n"
        made += text_of(statement)
        before = statement
    return made


def _attributes(members: list[tuple[Member | None, str, str]]) -> str:
    return "\n".join(indented(text) for _, _, text in members)


def _provenance(used: list[Member]) -> str:
    phases = sorted({member.owner.phase for member in used})
    return f"phase {phases[0]}" if len(phases) == 1 else f"phases {', '.join(map(str, phases))}"


def _longer(module: str, name: str) -> str:
    """What a name that another module has too is called: Kernel of phase11/profile.py is ProfileKernel."""
    leaf = module.rpartition(".")[2]
    if name.isupper():
        return f"{leaf.upper()}_{name}"
    return "".join(map(str.capitalize, leaf.split("_"))) + name if name[0].isupper() else f"{name}_of_{leaf}"


def _about(number: int) -> str:
    return (
        f"Made by `minfer flatten {number}`: phase {number} with all that it inherits, as one class; above each method, the "
        "phases that\nwrote it. It needs minfer.core and no phase."
    )
