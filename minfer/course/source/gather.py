"""Gathered: everything of the phases that some code needs, each definition once, in an order that runs."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from minfer.course.source.library import Definition, find, phase_of
from minfer.course.source.module import Imported, Module, Statement
from minfer.course.source.names import mentions


@dataclass
class Gathered:
    """Definitions and the imports that they need.

    `inside` says of a module whether its code is taken or imported; what is in `without` is neither.
    """

    inside: Callable[[Module], bool]
    without: frozenset[Definition] = frozenset()
    statements: dict[Module, list[Statement]] = field(default_factory=dict)
    imports: set[Imported] = field(default_factory=set)

    def add(self, definition: Definition) -> None:
        """Take a definition and all that it needs."""
        self.take(definition.statement)

    def take(self, statement: Statement) -> None:
        """Take a statement and all that it needs."""
        taken = self.statements.setdefault(statement.module, [])
        if statement in taken:
            return
        taken.append(statement)
        self.need(statement.module, statement.node)
        for other in statement.module.statements:  # what is done to a thing belongs to it: LIBRARY.define(…)
            if not other.names and not isinstance(other.node, ast.If) and self._concerns(other, statement.names):
                self.take(other)

    def need(self, module: Module, node: ast.AST) -> None:
        """Take all that `node`, a piece of `module`, needs."""
        for name in {mention.name for mention in mentions(node)}:
            found = find(module, name)
            if found is None or found in self.without:
                continue
            if isinstance(found, Definition) and self.inside(found.module):
                self.take(found.statement)
            else:  # what an earlier phase only hands on is imported from where it is
                self.imports.add(found if isinstance(found, Imported) else module.imports[name])

    def ordered(self, module: Module) -> list[Statement]:
        """What is taken of a module, in the order of its text."""
        return sorted(self.statements[module], key=lambda statement: statement.first)

    def modules(self) -> list[Module]:
        """Those that something is taken of: earlier phases first, and none before what it imports."""
        found: list[Module] = []
        for module in sorted(self.statements, key=lambda one: (phase_of(one.name), one.name)):
            self._visit(module, found)
        return found

    def _visit(self, module: Module, found: list[Module]) -> None:
        if module in found:
            return
        for imported in module.imports.values():
            target = next((one for one in self.statements if one.name == imported.module), None)
            if target is not None and not imported.for_types:
                self._visit(target, found)
        if module in self.statements and module not in found:
            found.append(module)

    @staticmethod
    def _concerns(statement: Statement, names: Iterable[str]) -> bool:
        return not {mention.name for mention in mentions(statement.node)}.isdisjoint(names)
