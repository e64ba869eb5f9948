"""Budget: how much of an Engine a phase may change, and how much it does change."""

from dataclasses import dataclass
from pathlib import Path

from minfer.course.exercise import read_toml
from minfer.course.source.lineage import Lineage, previous


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
    """What a phase's Engine has of its own."""

    overridden: list[str]
    added: list[str]
    lines: int

    @classmethod
    def by(cls, phase: int) -> "Spent":
        """Methods that the phase before has and that are new here, and lines of code. Raises `MinferError`."""
        lineage = Lineage.of(phase)
        before = lineage.up_to(previous(phase))
        methods = [member for member in lineage.youngest.members.values() if member.is_method]
        overridden = [member.name for member in methods if before.find(member.name)]
        added = [member.name for member in methods if member.name not in overridden]
        lines = sum(member.statement.code_lines for member in lineage.youngest.members.values())
        return cls(overridden, added, lines)

    def over(self, budget: Budget) -> list[str]:
        """What is too much, in words; nothing if all is within the budget."""
        found = []
        if len(self.overridden) > budget.overridden:
            names = ", ".join(self.overridden)
            found.append(f"overrides {len(self.overridden)} methods, at most {budget.overridden}: {names}")
        if self.lines > budget.lines:
            found.append(f"{self.lines} lines of code in its Engine, at most {budget.lines}")
        return found
