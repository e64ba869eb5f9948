"""Lineage: a phase's Engine, those of the phases before that it inherits from, and what each of them says itself."""

import ast
from dataclasses import dataclass
from functools import cached_property

from minfer.core.errors import MinferError
from minfer.course.source.library import Definition, check_phase, find, module, phase_of
from minfer.course.source.module import Imported, Module, Statement, statements_of

ENGINE = "Engine"
CONSTRUCTOR = "__init__"


@dataclass(frozen=True)
class Member:
    """A method of a class, or an attribute that is set in its body."""

    name: str
    owner: "Ancestor"
    statement: Statement

    @property
    def is_method(self) -> bool:
        """Whether it is a method, a property among them."""
        return isinstance(self.statement.node, ast.FunctionDef)

    @property
    def place(self) -> str:
        """File and line, from the repository's root."""
        return f"{place_of(self.statement.module)}:{self.statement.start}"

    @property
    def section(self) -> str:
        """The line `# ---- … ----` that opens a section of the class right above it; empty elsewhere."""
        lines = self.statement.module.lines
        above = self.statement.first - 2
        while above > 0 and not lines[above].strip():
            above -= 1
        return lines[above] if lines[above].strip().startswith("# ----") else ""

    @property
    def calls_inherited(self) -> list[str]:
        """Names of methods that it calls by `super()`."""
        return [node.func.attr for node in ast.walk(self.statement.node) if is_super_call(node)]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Ancestor:
    """A class of a lineage and what its body says."""

    module: Module
    node: ast.ClassDef

    @property
    def definition(self) -> Definition:
        """Where it is defined."""
        return Definition(self.module, self.node.name)

    @property
    def phase(self) -> int:
        """N of minfer.phaseN; 0 for classes of the core."""
        return phase_of(self.module.name)

    @cached_property
    def members(self) -> dict[str, Member]:
        """In the order of the text."""
        found = statements_of(self.module, self.node.body, self.node.lineno)
        return {name: Member(name, self, statement) for statement in found for name in statement.names}


@dataclass(frozen=True)
class Lineage:
    """A class and its ancestors within minfer, the oldest first."""

    ancestors: list[Ancestor]

    @classmethod
    def of(cls, phase: int, name: str = ENGINE) -> "Lineage":
        """That of a class that `minfer.phaseN` exports. Raises `MinferError` for a phase or class that is not there."""
        check_phase(phase)
        found = find(module(f"minfer.phase{phase}"), name)
        if not isinstance(found, Definition):
            raise MinferError(f"minfer.phase{phase} has no class {name}")
        return cls.of_class(found)

    @classmethod
    def of_class(cls, definition: Definition | Imported | None) -> "Lineage":
        """That of any class of the phases."""
        ancestors: list[Ancestor] = []
        while isinstance(definition, Definition) and isinstance(definition.statement.node, ast.ClassDef):
            node = definition.statement.node
            ancestors.insert(0, Ancestor(definition.module, node))
            base = node.bases[0] if node.bases else None
            definition = find(definition.module, base.id) if isinstance(base, ast.Name) else None
        return cls(ancestors)

    @property
    def youngest(self) -> Ancestor:
        """The class itself."""
        return self.ancestors[-1]

    @property
    def phases(self) -> list[int]:
        """The phases that have a part in it."""
        return [ancestor.phase for ancestor in self.ancestors]

    def up_to(self, phase: int) -> "Lineage":
        """Without what later phases add."""
        return Lineage([ancestor for ancestor in self.ancestors if ancestor.phase <= phase])

    def below(self, owner: Ancestor) -> "Lineage":
        """What `owner` inherits from: `super()` in it means these."""
        return Lineage(self.ancestors[: self.ancestors.index(owner)])

    def own(self, phase: int) -> dict[str, Member]:
        """What the classes of one phase, mostly a single one, say themselves; the youngest has the last word."""
        found: dict[str, Member] = {}
        for ancestor in self.ancestors:
            if ancestor.phase == phase:
                found |= ancestor.members
        return found

    def since(self, phase: int) -> list[Ancestor]:
        """What later phases than that add, the oldest first."""
        return [ancestor for ancestor in self.ancestors if ancestor.phase > phase]

    def versions(self, name: str) -> list[Member]:
        """Every class's own `name`, the oldest first."""
        return [ancestor.members[name] for ancestor in self.ancestors if name in ancestor.members]

    def find(self, name: str) -> Member | None:
        """What `name` means in the class."""
        return next(reversed(self.versions(name)), None)


def options_of(lineage: Lineage) -> Lineage:
    """The options of an Engine and those that they extend; empty where they are the core's own."""
    found = lineage.find("Options")
    assert found is not None
    value = found.statement.node.value  # type: ignore[attr-defined]
    return Lineage.of_class(find(found.owner.module, value.id))


def previous(phase: int) -> int:
    """The phase that `phase` is built on; 0 for the first."""
    return max((one for one in Lineage.of(phase).phases if one < phase), default=0)


def is_super_call(node: ast.AST) -> bool:
    """Whether it is `super().name(…)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Call)
        and isinstance(node.func.value.func, ast.Name)
        and node.func.value.func.id == "super"
    )


def place_of(module: Module) -> str:
    """A module's file, from the repository's root."""
    return f"{module.name.replace('.', '/')}.py" if module.name.startswith("minfer.") else str(module.path)
