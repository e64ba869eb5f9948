"""Mismatch: a failed check as its student reads it, one screen that says where to look."""

from typing import Any


class Mismatch(AssertionError):
    """What was done, what was expected, what came, and a question to think about; no dump of tensors.

    `evidence` is what came itself, where it is telling: another engine that gives the same has the same mistake.
    """

    def __init__(self, code: str, did: str, expected: str, got: str, hint: str = "", evidence: Any = None) -> None:
        self.code, self.did, self.expected, self.got, self.hint = code, did, expected, got, hint
        self.evidence = evidence
        super().__init__(self.report())

    def report(self) -> str:
        """The message: code and lines."""
        return "\n".join([self.code, *self.lines()])

    def lines(self) -> list[str]:
        """The lines below the heading."""
        lines = {"did": self.did, "expected": self.expected, "got": self.got, "think": self.hint}
        return [f"  {key:<9} {value}" for key, value in lines.items() if value]
