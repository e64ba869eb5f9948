"""History: who held which row at which step, of the last steps; for the live view."""

from collections import deque
from typing import Any, NamedTuple

KEPT = 256


class Row(NamedTuple):
    """One request in one step."""

    slot: int  # its row in the picture, for as long as it runs
    request: int
    kind: str  # "p": part of its prompt, "d": one more token


class Step(NamedTuple):
    """One step."""

    number: int
    started: float  # seconds of time.perf_counter
    seconds: float
    tokens: int  # computed
    waiting: int
    rows: list[Row]


class History:
    """The last `KEPT` steps. A running request keeps its slot, the lowest that was free when it began."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque(maxlen=KEPT)
        self.slots: dict[int, int] = {}  # request id -> slot
        self.count = 0

    def note(self, engine: Any, started: float, seconds: float) -> None:
        """A step of an engine has ended; in the engine's thread."""
        scheduler = engine.scheduler
        rows = [
            Row(self._slot(sequence.id), sequence.id, "p" if sequence.num_cached <= sequence.num_prompt else "d")
            for sequence in engine.scheduled
        ]
        self.steps.append(Step(self.count, started, seconds, sum(engine.counts), len(scheduler.waiting), rows))
        self.count += 1
        running = {sequence.id for sequence in scheduler.running}
        self.slots = {request: slot for request, slot in self.slots.items() if request in running}

    def _slot(self, request: int) -> int:
        if request not in self.slots:
            taken = set(self.slots.values())
            self.slots[request] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        return self.slots[request]
