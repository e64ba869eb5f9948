"""Phase 11, Profiling: what its starter needs, and no task is about."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from minfer.core.device import Stopwatch
from minfer.core.errors import OptionsError
from minfer.core.measures.latency import percentile
from minfer.core.measures.trace import MEMORY
from minfer.core.options import option
from minfer.core.sequence import Sequence
from minfer.phase10 import ParallelOptions as PreviousOptions

# ==== phase11/counters.py ===========================================================================================
# Counters: what an engine has counted since it was made, so that a step can be told from the ones before it.


class Counters(NamedTuple):
    """What an engine has counted so far."""

    preempted: int
    recompiles: int
    graph_rows: int
    graph_blocks: int
    rows: int
    communicated: int

    @classmethod
    def of(cls, engine: Any) -> "Counters":
        """Its counters as they are now."""
        usage, ranks = engine.usage, engine.ranks
        graphs = (usage.bucket_rows, usage.bucket_blocks, usage.rows)
        return cls(engine.scheduler.preemptions, engine.compilation.graphs, *graphs, ranks.nbytes if ranks else 0)

    def since(self, before: "Counters") -> "Counters":
        """What has been counted since `before` was read."""
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))


# ==== phase11/memory.py =============================================================================================
# MemoryParts: what an engine's memory is taken by.


@dataclass(frozen=True)
class MemoryParts:
    """Bytes. The parts are disjoint, and together `total`.

    weights       parameters, each once, in the form that their products want
    kv            the pool of the KV cache, its scratch block too
    buffers       tensors that the model keeps beside its weights, such as rotary tables; the memory of graphs
    activations   the most that steps held above all that lives longer; None: not measured, `Engine.profile` does that
    runtime       what else is taken: Python, torch, libraries; on a card its context, torch's reserve, other users
    """

    weights: int
    kv: int
    buffers: int
    activations: int | None
    runtime: int

    @classmethod
    def of(cls, engine: Any, activations: int | None = None) -> "MemoryParts":
        """Count what an engine holds; the runtime is the rest of what is taken now."""
        weights, buffers = tensor_bytes(engine.model)
        buffers += engine.graphs.nbytes if engine.graphs is not None else 0
        kv = engine.cache.pool.nbytes
        return cls(weights, kv, buffers, activations, max(0, engine.device.taken_memory() - weights - kv - buffers))

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.buffers + (self.activations or 0) + self.runtime


def tensor_bytes(model: nn.Module) -> tuple[int, int]:
    """Bytes of a model's weights and of the other tensors that its modules keep; shared memory is counted once."""
    weights: dict[int, int] = {}
    others: dict[int, int] = {}
    for module in model.modules():
        opaque: Any = getattr(module, "kernel", None)
        for name, value in [*vars(module).items(), *module._parameters.items(), *module._buffers.items()]:
            if isinstance(value, Tensor):
                kept = name in module._parameters or value.layout is not torch.strided  # a packed weight is opaque
                (weights if kept else others)[_memory(value)] = value.numel() * value.element_size()
            elif name == "packed" and value is not None:
                weights[id(value)] = opaque.opaque_bytes(module)
    return sum(weights.values()), sum(nbytes for key, nbytes in others.items() if key not in weights)


def _memory(tensor: Tensor) -> int:
    """The same number for tensors that share their memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


# ==== phase11/laps.py ===============================================================================================
# Laps: the host's time in the engine's steps, shared out among the parts of what was launched and what has landed.


PARTS = ("schedule", "prepare", "forward", "sample", "commit")
"""In the order of a step. `commit` has the wait for the tokens in it, and with it what the device had still to do.

Where steps overlap, the `commit` of one comes after the other parts of the next: the parts of a step are then not one
behind the other, and what lies between them belongs to another step.
"""

RANGE = "minfer."
"""How the names of ranges in a trace begin: `minfer.step`, a turn of the engine, and in it `minfer.forward` …"""

Seconds = dict[str, float]


# ==== phase11/metrics.py ============================================================================================
# Metrics: the latencies of the requests that have finished, in memory that is taken once; and their figures.


REQUESTS = 4096
GAPS = 2**16
"""How many are kept: the last requests that finished, and the last gaps between two tokens of a request."""

REQUEST = np.dtype(
    [(name, "i8") for name in ("request", "input_tokens", "output_tokens")]
    + [(name, "f8") for name in ("arrived", "queue", "prefill", "first_sample", "ttft", "tpot", "e2e")]
)


def _milliseconds(seconds: np.ndarray) -> dict[str, Any]:
    return _spread(1000 * seconds)


def _spread(values: np.ndarray) -> dict[str, Any]:
    """Mean, percentiles, greatest and number; null where there are no values. On percentiles see `percentile`."""
    if not len(values):
        return {**dict.fromkeys(("mean", "p50", "p95", "p99", "max")), "count": 0}
    each = values.tolist()
    percentiles = {f"p{percent}": percentile(each, percent) for percent in (50, 95, 99)}
    return {"mean": float(values.mean()), **percentiles, "max": float(values.max()), "count": len(values)}


def _rate(count: int, duration: float) -> float | None:
    return count / duration if duration else None


# ==== phase11/step_cost.py ==========================================================================================
# StepCost: the arithmetic and the traffic that a step cannot do without, from the config and the sizes.


class Cost(NamedTuple):
    """Of one step."""

    flops: float
    bytes_read: float
    bytes_written: float
    comm_bytes: float


# ==== phase11/step_log.py ===========================================================================================
# StepLog: one record for each step, in memory that is taken once; and as JSON lines.


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


# ==== phase11/observer.py ===========================================================================================
# Observer: sees one turn after another of an engine, what is launched in it and what lands, and writes it down.


PREFILL, DECODE, RECOMPUTE = range(len(KINDS))
PAIRS = 8
"""Pairs of stopwatches: more than there are forwards whose times the device has not told yet."""


class Watches(NamedTuple):
    """The stopwatches of a forward and of the draw that follows."""

    forward: Stopwatch
    sample: Stopwatch


@dataclass
class Observed:
    """A step, from the moment when it is scheduled until its tokens are taken in."""

    seconds: Seconds = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    started: float = 0.0
    step: Any = None  # the engine's own, once there is one
    work: list[Work] = field(default_factory=list)
    pairs: int = 0
    context: int = 0
    drawing: list[Sequence] = field(default_factory=list)
    first: list[Sequence] = field(default_factory=list)  # whose first token it draws
    watches: Watches | None = None  # None: it failed, or was given to no device yet
    finished: int = 0
    failed: int = 0
    taken: int = 0  # tokens, by their requests
    counted: Counters | None = None
    spent: float = 0.0  # on looking at it


class Turn(NamedTuple):
    """One call of `step`: the steps that were launched in it, and those that are over at its end."""

    launched: list[Observed]
    over: list[int]  # their numbers in the log


class Unsettled(NamedTuple):
    """A step that is over on the host, and whose device times are still to be read."""

    number: int
    watches: Watches | None
    first: list[Sequence]


# ==== phase11/tracks.py =============================================================================================
# Tracks: what the log knows of each step, as counter tracks of a trace.


def _last(records: list[Any], name: str, things: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each range of that name with its thing; a turn that was under way when the trace began has no range."""
    ranges = [record for record in records if record.name() == RANGE + name]
    return zip(reversed(ranges), reversed(things), strict=False)


# ==== phase11/profile.py ============================================================================================
# Profile: one run looked at by torch.profiler: its kernels, how long the device had nothing to do, its trace.


@dataclass(frozen=True)
class Kernel:
    """All calls of one operator (on a CPU) or of one kernel (on a card)."""

    name: str
    calls: int
    seconds: float
    """Without those that it called in its turn."""


def _works(record: Any, kind: str) -> bool:
    """Whether it is a kernel of a card, or on a CPU an operator; not a range, a launch, or a note of memory."""
    if record.is_user_annotation() or record.name() == MEMORY:
        return False
    if kind == "cpu":
        return "::" in record.name() or "_fused_" in record.name()
    return str(record.device_type()) == f"DeviceType.{kind.upper()}"


# ==== phase11/engine.py =============================================================================================
# Phase 11's change: `step` is observed. The hooks within say which part of which step begins, and change nothing.


@dataclass(frozen=True)
class ProfilingOptions(PreviousOptions):
    """Phase 11's options."""

    step_log: str | None = option(None, "file that gets a JSON line for each step; the last 2048 are kept anyway")

    @classmethod
    def of_replica(cls, given: dict[str, Any], checked: Any, number: int) -> dict[str, Any]:
        """As before; each replica's steps are in a file of its own: steps.jsonl, steps.1.jsonl …"""
        own = super().of_replica(given, checked, number)
        if number and own.get("step_log") is not None:
            path = Path(own["step_log"])
            own["step_log"] = str(path.with_name(f"{path.stem}.{number}{path.suffix}"))
        return own
