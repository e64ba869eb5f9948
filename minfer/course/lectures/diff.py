"""Diff: what one phase's Engine changes of another's, method by method along the hierarchy of classes.

A diff of files would show a subclass as if it had deleted all that it inherits. This one puts each method beside the
one that it overrides, wherever that is, and names what `super()` still runs.
"""

import ast
import difflib
from dataclasses import dataclass

from minfer.core.errors import MinferError
from minfer.course.source.library import modules_of
from minfer.course.source.lineage import Lineage, Member, options_of
from minfer.course.source.module import Module, Statement
from minfer.course.source.rewrite import renamed

ENGINE = "Engine"


@dataclass(frozen=True)
class Line:
    """A line of a method: kind " " is in both, "-" only in the old, "+" only in the new."""

    kind: str
    text: str


@dataclass(frozen=True)
class MethodDiff:
    """A method that is overridden (`old` is there) or new."""

    new: Member
    old: Member | None
    runs: list[Member]
    """What it still runs by `super()`."""

    @property
    def name(self) -> str:
        """The method's."""
        return self.new.name

    @property
    def title(self) -> str:
        """Its name, behind its class's where that is not the Engine but what the phase makes one of."""
        owner = self.new.owner.node.name
        return self.name if owner == ENGINE else f"{owner}.{self.name}"

    @property
    def text(self) -> str:
        """The new method."""
        return renamed(self.new.statement, {})

    @property
    def old_text(self) -> str:
        """The old method; empty if there is none."""
        return renamed(self.old.statement, {}) if self.old else ""

    @property
    def signature(self) -> list[str]:
        """The new method down to its first line of code, its docstring cut to one line."""
        node = self.new.statement.node
        assert isinstance(node, ast.FunctionDef)
        lines = self.text.splitlines()
        head = lines[: node.body[0].lineno - self.new.statement.first]
        return [*head, f'    """{self.new.statement.doc}"""'] if self.new.statement.doc else head

    def lines(self) -> list[Line]:
        """Old and new as one text."""
        old, new = self.old_text.splitlines(), self.text.splitlines()
        made: list[Line] = []
        for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal":
                made += [Line(" ", text) for text in old[i:j]]
            else:
                made += [Line("-", text) for text in old[i:j]] + [Line("+", text) for text in new[k:m]]
        return made

    def count(self, kind: str) -> int:
        """Lines of a kind."""
        return sum(line.kind == kind for line in self.lines())

    def warnings(self) -> list[str]:
        """What a reader of the method alone would miss."""
        return [f"super().{one.name}() still runs phase {one.owner.phase}'s: {one.place}" for one in self.runs]


@dataclass(frozen=True)
class Noun:
    """A class or function beside the Engine."""

    statement: Statement

    @property
    def name(self) -> str:
        """Its name, as a definition begins."""
        return ("class " if isinstance(self.statement.node, ast.ClassDef) else "def ") + self.statement.names[0]

    @property
    def module(self) -> Module:
        """Where it is."""
        return self.statement.module


@dataclass(frozen=True)
class OptionDiff:
    """An option that is new."""

    name: str
    type: str
    default: str
    about: str


@dataclass(frozen=True)
class PhaseDiff:
    """From phase `before` to phase `after`."""

    before: int
    after: int
    methods: list[MethodDiff]
    nouns: list[Noun]
    options: list[OptionDiff]

    @classmethod
    def of(cls, before: int, after: int) -> "PhaseDiff":
        """`before` 0: from nothing. Raises `MinferError` unless `after` is built on `before`."""
        lineage = Lineage.of(after)
        older = [phase for phase in dict.fromkeys(lineage.phases) if phase < after]
        if before not in (0, *older):
            known = ", ".join(map(str, older)) or "nothing"
            raise MinferError(f"phase {after} is not built on phase {before}: it is built on {known}")
        names = dict.fromkeys(name for one in lineage.since(before) for name in one.members)
        newest = [lineage.versions(name)[-1] for name in names]
        methods = [_method(lineage, member, before) for member in newest if member.is_method]
        later = dict.fromkeys(one.phase for one in lineage.since(before))
        modules = [module for phase in later for module in modules_of(phase)]
        classes = {id(one.node) for one in [*lineage.ancestors, *options_of(lineage).ancestors]}
        nouns = [
            Noun(statement)
            for module in modules
            for statement in module.statements
            if isinstance(statement.node, ast.ClassDef | ast.FunctionDef) and id(statement.node) not in classes
        ]
        return cls(before, after, methods, nouns, _options(lineage, before))

    @property
    def overridden(self) -> list[MethodDiff]:
        """Methods that were there before."""
        return [method for method in self.methods if method.old]

    @property
    def added(self) -> list[MethodDiff]:
        """Methods that are new."""
        return [method for method in self.methods if not method.old]

    @property
    def title(self) -> str:
        """Both phases, by number."""
        return f"Phase {self.before} → phase {self.after}" if self.before else f"Phase {self.after}"


def hidden(text: str) -> str:
    """A line to guess: as long as it is, and no letter of it."""
    indent = len(text) - len(text.lstrip())
    return " " * indent + "░" * (len(text) - indent)


def _method(lineage: Lineage, member: Member, before: int) -> MethodDiff:
    runs = []
    for called in dict.fromkeys(member.calls_inherited):
        older = lineage.below(member.owner).find(called)
        if older is not None:
            runs.append(older)
    return MethodDiff(member, lineage.up_to(before).find(member.name), runs)


def _options(lineage: Lineage, before: int) -> list[OptionDiff]:
    made = []
    for ancestor in options_of(lineage).since(before):
        for member in ancestor.members.values():
            node = member.statement.node
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
                default, about = (ast.unparse(argument) for argument in node.value.args)
                made.append(OptionDiff(member.name, ast.unparse(node.annotation), default, about.strip("f\"'")))
    return made
