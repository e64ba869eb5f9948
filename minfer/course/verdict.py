"""Mismatch: a failed check as its student reads it, one screen that says where to look."""


class Mismatch(AssertionError):
    """What was done, what was expected, what came, and a question to think about; no dump of tensors."""

    def __init__(self, code: str, did: str, expected: str, got: str, hint: str = "") -> None:
        self.code, self.did, self.expected, self.got, self.hint = code, did, expected, got, hint
        super().__init__(self.report())

    def report(self) -> str:
        """The lines of the message."""
        lines = {"did": self.did, "expected": self.expected, "got": self.got, "think": self.hint}
        return "\n".join([self.code, *(f"  {key:<9} {value}" for key, value in lines.items() if value)])
