"""Limits: what a service promises, by which goodput is counted."""

from dataclasses import dataclass

from minfer.core.errors import OptionsError


@dataclass(frozen=True)
class Limits:
    """Most seconds of TTFT, TPOT and E2E; None: no limit. Met means: not above."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    tokens: int | None = None
    """E2E's limit is for answers of up to so many tokens; a longer one may take longer in proportion."""

    def met(self, ttft: float, tpot: float, e2e: float, tokens: int) -> bool:
        """Whether a request of so many output tokens was served in time; `tpot` is NaN for one.

        Where TPOT has a limit, a request of one token cannot show that it keeps it, and does not count as served well.
        """
        longer = max(1.0, tokens / self.tokens) if self.tokens else 1.0
        return (
            (self.ttft is None or ttft <= self.ttft)
            and (self.tpot is None or tpot <= self.tpot)
            and (self.e2e is None or e2e <= self.e2e * longer)
        )

    def __str__(self) -> str:
        parts = {"TTFT": self.ttft, "TPOT": self.tpot, "E2E": self.e2e}
        said = " and ".join(f"{name} ≤ {1000 * value:g} ms" for name, value in parts.items() if value is not None)
        return f"{said} for {self.tokens} tokens" if self.tokens else said


PRESETS = {
    "chat": Limits(ttft=0.5),
    "reading": Limits(tpot=1 / 20),
    "answer": Limits(e2e=5.0, tokens=200),
    "all": Limits(ttft=0.5, tpot=1 / 20, e2e=5.0, tokens=200),
}
"""chat: something appears within 500 ms; reading: 20 tokens/s for each user; answer: 200 tokens within 5 s."""


def preset(name: str) -> Limits:
    """The limits of that name. Raises `OptionsError`."""
    if name not in PRESETS:
        raise OptionsError(f"limits {name!r} are unknown: use one of {', '.join(PRESETS)}")
    return PRESETS[name]
