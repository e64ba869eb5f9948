"""Flatten: phase N as one file that reads from top to bottom: no class of one phase inherits from another's.

What only earlier phases used is left out: nouns that were replaced, and methods that nothing calls any more.
"""

import ast

from minfer.course.lectures.folding import Folding
from minfer.course.source.gather import Gathered
from minfer.course.source.imports import import_block
from minfer.course.source.library import Definition, find, module, phase_of
from minfer.course.source.lineage import CONSTRUCTOR, Lineage, Member, options_of
from minfer.course.source.module import Statement
from minfer.course.source.names import attributes
from minfer.course.source.naming import Meaning, Naming
from minfer.course.source.rewrite import indented, renamed
from minfer.course.source.sections import file_text, sections_text


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
        self.naming = self._naming()

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
        """Whether it lives as long as what uses it: attributes, and what its own class has brought to use itself."""
        member = self.lineage.versions(name)[0]
        others = [one for one in member.owner.members.values() if one.name != name]
        return not member.is_method or any(name in attributes(one.statement.node) for one in others)

    @staticmethod
    def _names(lineage: Lineage) -> list[str]:
        """The members' names: the oldest class's, and each later one's new ones behind what they stand behind there."""
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

    def _naming(self) -> Naming:
        gathered = self.gathered
        own = [Definition(one, name) for one in gathered.modules() for s in gathered.ordered(one) for name in s.names]
        fixed: dict[Meaning, str] = {
            one.definition: lineage.youngest.node.name
            for lineage in (self.lineage, self.options)
            for one in lineage.ancestors
        }
        return Naming(find, gathered.imports, own, fixed)

    # ---- text ----------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole file."""
        number = self.lineage.youngest.phase
        parts = [_about(number), import_block(self.naming.imports)]
        parts += sections_text({one: self.gathered.ordered(one) for one in self.gathered.modules()}, self._text)
        parts += [self._class(lineage) for lineage in (self.options, self.lineage) if lineage.ancestors]
        return file_text(*parts)

    def _text(self, statement: Statement) -> str:
        return renamed(statement, self.naming.changed_in(statement.module))

    def _class(self, lineage: Lineage) -> str:
        folding = Folding(lineage, lambda member: self._text(member.statement))
        names = self.live if lineage is self.lineage else self._names(lineage)
        members = []
        for name in names:
            used, kept = len(folding.used), set(folding.kept)
            text = folding.fold(name)
            for beside in [one for one in folding.kept if one not in kept]:
                text += f"\n\n# {beside.rpartition('_of_')[2].replace('phase', 'phase ')}\n{folding.kept[beside]}"
            members.append((lineage.find(name), _provenance(folding.used[used:]), text))
        youngest, oldest = lineage.youngest.node, lineage.ancestors[0]
        decorators = [f"@{ast.unparse(one)}" for one in youngest.decorator_list]
        bases = [ast.unparse(base) for base in oldest.node.bases]
        title = f"class {youngest.name}({', '.join(bases)}):" if bases else f"class {youngest.name}:"
        doc = f'    """{ast.get_docstring(youngest)}"""'
        body = [_attributes([item for item in members if not item[0].is_method])]  # type: ignore[union-attr]
        sections = self._sections(lineage, names)
        for member, provenance, text in members:
            assert member is not None
            if member.is_method:
                section = sections.get(member.name, "")
                body.append(f"{section}\n\n" * bool(section) + indented(f"# {provenance}\n{text}"))
        return "\n".join([*decorators, title, doc]) + "\n\n" + "\n\n".join(filter(None, body))

    def _sections(self, lineage: Lineage, names: list[str]) -> dict[str, str]:
        """The line that opens a section, by the first of its methods in the oldest class that is in the result."""
        found: dict[str, str] = {}
        opened = ""
        for name in self._names(lineage):
            first = lineage.versions(name)[0]
            if first.owner is lineage.ancestors[0] and first.owner.phase and name != CONSTRUCTOR:
                opened = first.section or opened
                if name in names:
                    found[name], opened = opened, ""
        return found


def _attributes(members: list[tuple[Member | None, str, str]]) -> str:
    return "\n".join(indented(text) for _, _, text in members)


def _provenance(used: list[Member]) -> str:
    phases = sorted({member.owner.phase for member in used})
    return f"phase {phases[0]}" if len(phases) == 1 else f"phases {', '.join(map(str, phases))}"


def _about(number: int) -> str:
    return f'''"""{module(f"minfer.phase{number}").doc}

Made by `minfer flatten {number}`: phase {number} with all that it inherits, as one class; above each method stand the
phases that wrote it. It needs minfer.core and no phase.
"""'''
