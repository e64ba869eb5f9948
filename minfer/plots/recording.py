"""Recording: what happened in each step of a run: which request held which row of the batch, and whose each block was.

Works on any engine; blocks are known from phase 5 on, where `debug_state` tells them.
"""

from dataclasses import dataclass, field
from typing import Any

from minfer.core.sequence import Sequence

FREE, CACHED, SHARED = -1, -2, -3  # a block that nobody holds: empty, or with a known prefix; one that several hold


@dataclass(frozen=True)
class Work:
    """What a step did for one request."""

    request: int  # in the order of arrival, from 0
    row: int  # the lane of the batch that it held from its start to its end
    tokens: int
    kind: str  # prefill, decode, recompute


@dataclass
class Recording:
    """The steps of one run, in order."""

    work: list[list[Work]] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)  # per step and block: a request's number, or FREE …
    waiting: list[int] = field(default_factory=list)  # per step: requests that were queued

    def __post_init__(self) -> None:
        self._rows: dict[int, int] = {}  # request id -> row that it holds
        self._numbers: dict[int, int] = {}

    def note(self, engine: Any, sequences: list[Sequence], advanced: list[Sequence]) -> None:
        """Take down the step that has just ended; `sequences` are all of the run, `advanced` what the step gave."""
        self._numbers = self._numbers or {sequence.id: number for number, sequence in enumerate(sequences)}
        state = engine.debug_state() if hasattr(engine, "debug_state") else _plain_state(sequences, advanced)
        own = [entry for entry in state["step"] if entry["id"] in self._numbers]
        running = {entry["id"] for entry in own} | set(state["running"])
        self._rows = {request: row for request, row in self._rows.items() if request in running}
        self.work.append([self._work(entry) for entry in own])
        self.waiting.append(len(state["waiting"]))
        if "references" in state:
            self.blocks.append(self._owners(state))

    def _work(self, entry: dict[str, Any]) -> Work:
        request = entry["id"]
        if request not in self._rows:
            taken = set(self._rows.values())
            self._rows[request] = next(row for row in range(len(taken) + 1) if row not in taken)
        return Work(self._numbers[request], self._rows[request], entry["tokens"], entry["kind"])

    def _owners(self, state: dict[str, Any]) -> list[int]:
        owners = [FREE] * state["num_blocks"]
        for block in state["cached_blocks"]:
            owners[block] = CACHED
        for request, table in state["tables"].items():
            for block in table:
                shared = state["references"][block] > 1
                owners[block] = SHARED if shared else self._numbers.get(request, FREE)
        return owners


def _plain_state(sequences: list[Sequence], advanced: list[Sequence]) -> dict[str, Any]:
    """The same facts of an engine without a scheduler: whoever got a token was in the step."""
    step = [
        {
            "id": sequence.id,
            "tokens": sequence.num_prompt if len(sequence.output_ids) == 1 else 1,
            "kind": "prefill" if len(sequence.output_ids) == 1 else "decode",
        }
        for sequence in advanced
    ]
    waiting = [sequence.id for sequence in sequences if not sequence.output_ids and not sequence.finished]
    return {"step": step, "running": [s.id for s in advanced if not s.finished], "waiting": waiting}
