"""Waterfall: the difference of two rows in milliseconds per output token, shared out among what the time goes to.

Per token rather than per step: so a batch, whose step is longer, is seen to read the weights once for all its rows.
"""

from dataclasses import asdict, dataclass

from minfer.cost.cost_model import Terms

NAMES = {
    "weights": "weights read",
    "kv": "KV read",
    "copies": "copies",
    "arithmetic": "arithmetic",
    "launches": "launches",
    "communication": "communication",
    "host": "host",
}
MEANING = {
    "weights": "reading the weights at the memory's speed",
    "kv": "attention: storing keys and values, and reading them",
    "copies": "gathering a paged cache's blocks before attention reads them",
    "arithmetic": "what products take beyond reading: multiplying, unpacking, converting",
    "launches": "all other operators, and what Python takes to call them",
    "communication": "waiting for other ranks",
    "host": "scheduling, preparing, sampling, detokenising: outside of the forward",
}
ADVICE = {
    "weights": "read fewer bytes (int8, int4) or serve more requests with each reading (a larger batch)",
    "kv": "shorter contexts, fewer KV heads, or keys and values of fewer bits",
    "copies": "attention that reads pages where they are, or larger blocks",
    "arithmetic": "a dtype that the hardware multiplies by itself, or a kernel that unpacks less",
    "launches": "fewer operators: fusion (phase 7), or graphs (phase 8)",
    "communication": "fewer ranks, or a larger batch for each exchange",
    "host": "work of the host beside the device's (phase 9), or a larger batch",
}


@dataclass(frozen=True)
class Waterfall:
    """From `first` to `second` ms per output token; `parts` and `unexplained` sum to the difference.

    `noise`: the spread of both rows' runs; a difference that is not above it has no causes to be found.
    """

    first: float
    second: float
    parts: dict[str, float]
    unexplained: float
    noise: float

    @classmethod
    def of(cls, first: float, second: float, before: Terms, after: Terms, noise: float = 0.0) -> "Waterfall":
        """Of two measured times and what they were made of, all in ms per token."""
        changes = {name: asdict(after)[name] - asdict(before)[name] for name in NAMES}
        return cls(first, second, changes, second - first - sum(changes.values()), noise)

    @property
    def difference(self) -> float:
        """second - first."""
        return self.second - self.first

    @property
    def unexplained_share(self) -> float:
        """Of the difference; 0 where there is none."""
        return abs(self.unexplained / self.difference) if self.difference else 0.0

    @property
    def is_noise(self) -> bool:
        """Whether the rows differ by less than their own runs do."""
        return abs(self.difference) <= self.noise
