"""Budget: how much of an Engine a phase may change, and how much it does change."""

from dataclasses import dataclass
from pathlib import Path

from minfer.course.lessons.exercise import read_toml
from minfer.course.source.lineage import Ancestor, Lineage, previous


@dataclass(frozen=True)
class Budget:
    """The promise of `phases/course.toml`."""

    overridden: int
    lines: int

    @classmethod
    def read(cls, path: Path, phase: int) -> "Budget":
        """What the file says for all phases, unless it has another number for this one. Raises `MinferError`."""
        found = read_toml(path)
        found |= found.get(f"phase{phase}", {})
        return cls(found["overridden"], found["lines"])


@dataclass(frozen=True)
class Spent:
    """What a class of a phase's Engine has of its own. Mostly there is one; each keeps the promise by itself."""

    name: str
    overridden: list[str]
    added: list[str]
    lines: int

    @classmethod
    def by(cls, phase: int) -> "list[Spent]":
        """Methods that the phase before has and that are new here, and lines of code. Raises `MinferError`."""
        lineage = Lineage.of(phase)
        before = lineage.up_to(previous(phase))
        return [cls._of(one, before) for one in lineage.ancestors if one.phase == phase]

    @classmethod
    def _of(cls, ancestor: Ancestor, before: Lineage) -> "Spent":
        methods = [member.name for member in ancestor.members.values() if member.is_method]
        overridden = [name for name in methods if before.find(name)]
        lines = sum(member.statement.code_lines for member in ancestor.members.values())
        return cls(ancestor.node.name, overridden, [name for name in methods if name not in overridden], lines)

    def over(self, budget: Budget) -> list[str]:
        """What is too much, in words; nothing if all is within the budget."""
        found = []
        if len(self.overridden) > budget.overridden:
            names = ", ".join(self.overridden)
            found.append(f"{self.name} overrides {len(self.overridden)} methods, at most {budget.overridden}: {names}")
        if self.lines > budget.lines:
            found.append(f"{self.lines} lines of code in {self.name}, at most {budget.lines}")
        return found
