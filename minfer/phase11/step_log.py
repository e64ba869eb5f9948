"""StepLog: one record for each step, in memory that is taken once; and as JSON lines."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from minfer.core.errors import OptionsError
from minfer.phase11.laps import PARTS

CAPACITY = 2048
"""Steps that are kept; older ones are overwritten. The file, if there is one, has all."""

KINDS = ("prefill", "decode", "recompute")
"""What a step does for a request: part of its prompt, one new token, or again what a preemption lost."""


class Work(NamedTuple):
    """What a step did for one request."""

    request: int  # its id
    tokens: int  # that were computed
    kind: int  # place in `KINDS`


class StepFacts(NamedTuple):
    """What is known of a step when it is over and its tokens are taken in; running, waiting and blocks are as of then.

    Seconds are the host's, of the engine's clock: `seconds` is the sum of the parts, all that the host has spent on
    this step. Where steps overlap, the next one is launched between two parts of this one, and has its own line.
    """

    tokens: int  # computed for requests
    padded: int  # computed for nobody
    rows: int  # of logits: tokens that were drawn
    discarded: int  # of these, thrown away: their requests had ended meanwhile, or the step failed
    finished: int
    failed: int
    preempted: int
    running: int
    waiting: int
    used_blocks: int
    free_blocks: int
    unused_slots: int  # of the blocks in use, those without a token: in the last block of each running request
    graph_rows: int  # the size of the graph that was replayed; 0: none was
    graph_blocks: int
    recompiles: int  # graphs that torch.compile made during the step
    comm_counted: int  # bytes that rank 0's operations between ranks were on: comm_bytes, announcement, padding
    started: float
    seconds: float
    schedule: float
    prepare: float
    forward: float
    sample: float
    commit: float
    flops: float  # these four: see `StepCost`
    bytes_read: float
    bytes_written: float
    comm_bytes: float


NUMPY = {int: "i8", float: "f8"}
OWN = [("device_forward", "f8"), ("logging", "f8"), ("first_work", "i8"), ("num_work", "i8")]
STEP = np.dtype([(name, NUMPY[kind]) for name, kind in StepFacts.__annotations__.items()] + OWN)
WORK = np.dtype([(name, "i8") for name in Work._fields])


class StepLog:
    """The last `CAPACITY` steps; beside their facts

    device_forward   seconds that the device spent on the forward; NaN: not known yet, or the forward failed
    logging          seconds that observing the step took, which are not in the step's own
    """

    def __init__(self, most_work: int, path: str | None = None) -> None:
        """`most_work`: the most requests in one step; `path`: a file for all steps, made with the first.

        Raises `OptionsError` if it cannot be written.
        """
        self.steps = np.zeros(CAPACITY, STEP)
        self.work = np.zeros(CAPACITY * min(most_work, 16) + most_work, WORK)
        self.count = 0  # steps so far
        self.worked = 0  # entries of work so far
        self.path = _checked(path) if path else None
        self.file: TextIO | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the log; it does not grow."""
        return self.steps.nbytes + self.work.nbytes

    def add(self, facts: StepFacts, work: Sequence[Work]) -> int:
        """Write a step's record and return its number."""
        number, self.count = self.count, self.count + 1
        place = self.worked % len(self.work)
        if place + len(work) > len(self.work):  # a step's work lies together
            self.worked += len(self.work) - place
            place = 0
        self.work[place : place + len(work)] = work
        self.steps[number % CAPACITY] = (*facts, np.nan, np.nan, self.worked, len(work))
        self.worked += len(work)
        return number

    def took(self, number: int, seconds: float) -> None:
        """Observing step `number` took so long."""
        self.steps["logging"][number % CAPACITY] = seconds

    def settle(self, number: int, device_forward: float) -> None:
        """The device has told its time of step `number`, or will not (NaN): the record is complete."""
        self.steps["device_forward"][number % CAPACITY] = device_forward
        if self.path is not None:
            self.file = self.file or _open(self.path)
            self.file.write(json.dumps(self.line(number)) + "\n")

    def numbers(self) -> range:
        """The steps that are kept."""
        return range(max(0, self.count - CAPACITY), self.count)

    def records(self) -> np.ndarray:
        """The kept steps in their order: a structured array of its own, with the fields of `STEP`."""
        return self.steps[[number % CAPACITY for number in self.numbers()]]

    def lines(self) -> Iterator[dict[str, Any]]:
        """The kept steps as plain JSON values."""
        return map(self.line, self.numbers())

    def line(self, number: int) -> dict[str, Any]:
        """One step as plain JSON values; what is not known is null, and so is work that was overwritten."""
        row = self.steps[number % CAPACITY]
        facts = {name: row[name].item() for name in StepFacts._fields}
        parts = {part: facts.pop(part) for part in PARTS}
        graph = facts.pop("graph_rows"), facts.pop("graph_blocks")
        return {
            "step": number,
            "work": self._work(int(row["first_work"]), int(row["num_work"])),
            **facts,
            "graph": list(graph) if graph[0] else None,
            "parts": parts,
            **{name: _known(row[name].item()) for name in ("device_forward", "logging")},
        }

    def _work(self, first: int, count: int) -> list[dict[str, Any]] | None:
        if first < self.worked - len(self.work):
            return None
        place = first % len(self.work)
        return [
            {"id": int(one["request"]), "tokens": int(one["tokens"]), "kind": KINDS[one["kind"]]}
            for one in self.work[place : place + count]
        ]


def _known(seconds: float) -> float | None:
    return None if np.isnan(seconds) else seconds


def _checked(path: str) -> Path:
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        raise OptionsError(f"step_log = {path!r} cannot be written: name a file in a folder that exists")
    return Path(path)


def _open(path: Path) -> TextIO:
    """Only when there is something to write: of several ranks, one has steps."""
    try:
        return path.open("w", encoding="utf-8", buffering=1)  # line by line, so what is written survives a crash
    except OSError as error:
        raise OptionsError(f"step_log = {str(path)!r} cannot be written: {error.strerror}") from error
