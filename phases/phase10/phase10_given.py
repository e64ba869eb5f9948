"""Phase 10, Multi-GPU: what its starter needs, and no task is about."""

import base64
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

import minfer
from minfer.core.attention import Attention
from minfer.core.batch import ForwardBatch
from minfer.core.checkpoint import TensorSource
from minfer.core.device import Device
from minfer.core.entry import can_be_found, command, find, place_of
from minfer.core.errors import DeviceError, MinferError, OptionsError
from minfer.core.group import Group, RankError, World
from minfer.core.options import at_least, option
from minfer.core.params import SamplingParams
from minfer.core.sampling import TokenLogprob
from minfer.core.sequence import FinishReason, Sequence
from minfer.core.tokenizer import Tokenizer
from minfer.phase9 import PagedStep, PerChannel, QuantizedLinear
from minfer.phase9 import StreamOptions as PreviousOptions

# ==== phase10/shard_plan.py =========================================================================================
# ShardPlan: which slice of which parameter belongs to which rank.
#
#     column-parallel   q, k, v, gate, up       a rank has some of the outputs: whole heads, or some of the inner channels
#     row-parallel      o_proj, down_proj       a rank has the inputs that its own outputs are; the results are summed
#     vocabulary        embedding and head      a rank has some rows, the same number on all: the last ones are padding
#     pipeline          layers                  a stage has some of them; the first the embedding, the last norm and head
#
# Everything else is small and on every rank (norms, biases of row-parallel layers, learned positions).


GRANULES = (128, 64, 32)
"""Inner channels are dealt in such lots where that comes out even: groups of quantised columns stay whole."""

LAYER = re.compile(r"(layers|h)\.(\d+)\.")


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its part of each layer, and its stage of the layers. Rank 0 is the first of both."""

    part: int
    parts: int
    stage: int
    stages: int

    @classmethod
    def of(cls, rank: int, parts: int, stages: int) -> "Place":
        """Ranks of one stage are neighbours."""
        return cls(rank % parts, parts, rank // parts, stages)

    @property
    def rank(self) -> int:
        """Its number in the world."""
        return self.stage * self.parts + self.part

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.parts * self.stages

    @property
    def is_first(self) -> bool:
        """Whether tokens come in here."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether logits come out here."""
        return self.stage == self.stages - 1


class Part(NamedTuple):
    """A slice of a parameter: `ranges` of dimension `dim`, one behind the other, then zeros up to `size`.

    None for `dim`: all of the parameter.
    """

    dim: int | None
    ranges: Items[range] = ()
    size: int = 0

    def shape(self, whole: Items[int]) -> tuple[int, ...]:
        """The slice's shape, of a parameter of shape `whole`."""
        return tuple(self.size if dim == self.dim else length for dim, length in enumerate(whole))


class Communication(NamedTuple):
    """Bytes of activations that one rank's operations are on, in a step of N tokens of which R have logits:

    N · hidden       for each sum, of the embedding and two per layer; and from, and to, another stage
    R · hidden       for the last layer's two: what follows the last attention is done for these rows only
    R · vocabulary   for logits that are gathered, with padding, and for those that another stage gives to rank 0

    What rank 0 announces of the step, and rows that only fill up a graph, come on top.
    """

    per_token: int
    per_row: int

    def of(self, tokens: int, rows: int) -> int:
        """Of one step."""
        return tokens * self.per_token + rows * self.per_row


def channels(heads: range, head_dim: int) -> range:
    """The channels of consecutive heads."""
    return range(heads.start * head_dim, heads.stop * head_dim)


# ==== phase10/cores.py ==============================================================================================
# Cores: those of this process, dealt out to the ranks of an engine, and taken back when no engine has a share.


CORES: Items[int] = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()
"""Those that this process may run on; unknown on macOS."""


def run_on(cores: Items[int], thread: int) -> None:
    """Let a thread, or a process that has one yet, run on these cores only, and all threads that it starts."""
    if cores:
        with suppress(OSError):  # it has ended, or may not: it is only a matter of speed
            os.sched_setaffinity(thread, cores)


# ==== phase10/job.py ================================================================================================
# Job: what a rank's or a replica's process is to do, as one line that it reads.


@dataclass(frozen=True)
class Job:
    """What a rank is to do."""

    engine: tuple[str, str, str]  # module, its file, class
    model: str
    options: dict[str, Any]
    parts: int
    stages: int
    port: int  # where ranks meet
    timeout: float
    rank: int = 0
    links: tuple[int, ...] = ()  # files that are a replica's ends of its connections

    @classmethod
    def of(cls, engine_cls: type, model: str, options: dict[str, Any], checked: Any, port: int = 0) -> "Job":
        """The job of ranks, or of a replica. They run `engine_cls`, or a base of it that other processes can find."""
        base = next((c for c in engine_cls.__mro__ if can_be_found(c)), None)
        if base is None:
            raise OptionsError(f"{engine_cls.__name__} is in no .py file, in which the other ranks could find it")
        kept = {"device": checked.device, **{name: value for name, value in options.items() if name != "ranks"}}
        parts, stages = checked.tensor_parallel, checked.pipeline_parallel
        return cls(place_of(base), str(model), kept, parts, stages, port, checked.rank_timeout)

    def packed(self) -> bytes:
        """One line. Raises `OptionsError` for an option that is a live object."""
        try:
            return base64.b64encode(pickle.dumps(self)) + b"\n"
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionsError(f"an option cannot be given to another process: {error}") from error

    @staticmethod
    def unpacked(line: bytes) -> "Job":
        """The job of a line."""
        job: Job = pickle.loads(base64.b64decode(line))
        return job


# ==== phase10/torch_group.py ========================================================================================
# TorchGroup: a group over one `torch.distributed` process group, Gloo or NCCL, that belongs to one engine only.
#
# The process groups are made here from a store, not by `init_process_group`, which knows one world per process: so two
# engines can live side by side.


IDLE = 10 * 365 * 86400.0
"""Seconds that a rank waits for the next step: for ever."""


def require_distributed() -> None:
    """Raise `DeviceError` where torch was built without `torch.distributed`."""
    if not dist.is_available():
        raise DeviceError(
            "this torch was built without torch.distributed, which tensor_parallel and pipeline_parallel need: "
            "install another build, or load with 1 of each"
        )


class TorchGroup(Group):
    """Operations on `made`, which fail after `timeout` seconds without an answer from the others."""

    def __init__(self, made: Any, timeout: float) -> None:
        self.made: Any = made
        self.seconds = 0.0  # that this host has spent in operations; GPUs work on beside it
        self.rank, self.size = made.rank(), made.size()
        self.timeout = timedelta(seconds=timeout)
        from torch._C._distributed_c10d import AllgatherOptions  # absent where torch.distributed is

        self.reducing, self.gathering = dist.AllreduceOptions(), AllgatherOptions()
        self.spreading = dist.BroadcastOptions()
        for options in (self.reducing, self.gathering, self.spreading):
            options.timeout = self.timeout

    def reduced(self, x: Tensor) -> Tensor:
        """As `Group`."""
        self._do("all_reduce", lambda: [self.made.allreduce([x], self.reducing)])
        return x

    def gathered(self, x: Tensor, into: Tensor) -> Tensor:
        """As `Group`."""
        parts = list(into.unbind(0))
        self._do("all_gather", lambda: [self.made.allgather([parts], [x.contiguous()], self.gathering)])
        return into

    def spread(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        self.spreading.rootRank = source
        self._do("broadcast", lambda: [self.made.broadcast([x], self.spreading)])
        return x

    def sent(self, x: Tensor, to: int) -> None:
        """As `Group`."""
        self._do(f"send to rank {to}", lambda: [self.made.send([x], to, 0)])

    def received(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        self._do(f"receive from rank {source}", lambda: [self.made.recv([x], source, 0)])
        return x

    def leave(self) -> None:
        """Let go of the connections now: at the end of the interpreter, torch ends the process over broken ones."""
        made, self.made = self.made, None
        if hasattr(made, "abort"):
            made.abort()

    def _do(self, what: str, start: Callable[[], list[Any]]) -> None:
        """Start something, and wait until all of it is done."""
        if self.made is None:
            raise RankError(f"rank {self.rank} of {self.size} has left the others: no {what}")
        began = time.perf_counter()
        try:
            for work in start():
                work.wait(self.timeout)
        except RuntimeError as error:
            raise RankError(f"rank {self.rank} of {self.size} in {what}: {error}") from error
        self.seconds += time.perf_counter() - began


def nccl(store: Any, name: str, rank: int, size: int, timeout: float) -> Any:
    """An NCCL process group for tensors on NVIDIA cards. Raises `DeviceError` where torch has no NCCL."""
    if not dist.is_nccl_available():
        raise DeviceError("this torch was built without NCCL, which several GPUs need: use a CUDA build, or device=cpu")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupNCCL(dist.PrefixStore(name, store), rank, size, options)


# ==== phase10/gloo_group.py =========================================================================================
# GlooGroup: a group over Gloo, tuned for decode steps: two messages of a few kB in each layer.
#
# Gloo runs a collective in a thread of its own, and needs two rounds for a sum. A small message arrives sooner if each
# rank sends it to every other one at once, from the thread that computed it. Another thread of Gloo's receives messages;
# `make_way` keeps it from interrupting the sender.


SMALL = 2**17
"""Bytes of a message up to which its latency, not its size, decides how long it takes."""

THREADS = Path("/proc/self/task")


class GlooGroup(TorchGroup):
    """Operations over Gloo. All ranks sum in the same order, so results are the same bit by bit."""

    def reduced(self, x: Tensor) -> Tensor:
        """As `Group`."""
        if x.nbytes > SMALL:
            return super().reduced(x)
        return torch.sum(self._exchanged("all_reduce", x, x.new_empty(self.size, *x.shape)), 0, out=x)

    def gathered(self, x: Tensor, into: Tensor) -> Tensor:
        """As `Group`."""
        return self._exchanged("all_gather", x.contiguous(), into) if x.nbytes <= SMALL else super().gathered(x, into)

    def spread(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        if x.nbytes > SMALL:
            return super().spread(x, source)
        if self.rank == source:
            self._do("broadcast", lambda: [self.made.send([x], other, 0) for other in self._others])
        else:
            self._do("broadcast", lambda: [self.made.recv([x], source, 0)])
        return x

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _exchanged(self, what: str, x: Tensor, into: Tensor) -> Tensor:
        """Everyone's `x`, in the order of ranks, in `into`: all are sent and received at the same time."""
        into[self.rank] = x

        def start() -> list[Any]:
            receiving = [self.made.recv([into[other]], other, 0) for other in self._others]
            return receiving + [self.made.send([x], other, 0) for other in self._others]

        self._do(what, start)
        return into


def gloo(store: Any, name: str, rank: int, size: int, host: str, timeout: float) -> Any:
    """A Gloo process group for tensors on the CPU, reached under `host` by the others."""
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    before = threads()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout)
    make_way(threads() - before)
    return dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, options)


def threads() -> set[int]:
    """The ids of this process's threads, where the system tells."""
    return {int(entry.name) for entry in THREADS.iterdir()} if THREADS.exists() else set()


def make_way(readers: set[int]) -> None:
    """Keep Gloo's reader threads from preempting the thread that sends.

    A sender holds the connection's lock. If an answer arrives meanwhile, it wakes this rank's reader; if the scheduler
    gives the reader the sender's core, it finds the lock taken and spins on it, without sleeping, until the next
    scheduler tick, up to 4 ms later: some twenty times as long as the message takes. A thread in Linux's batch class
    does not preempt: it waits until the core is free.
    """
    for thread in readers:
        with suppress(OSError):  # it is not allowed everywhere, and only a matter of speed
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


# ==== phase10/step_message.py =======================================================================================
# StepMessage: what rank 0 tells the others of a step: numbers only, of which each makes the same batch for its shard.
#
#     header    int64, of one length for all steps, on the host: the step's number, its kind, and the sizes below
#     payload   int64, where the model lives: input_ids, positions, rows, slots, block tables, end to end
#
# The payload is taken from the tensors of the step as they are, so tokens that are known only to the device stay there.


FACTS = 7
"""Numbers of a header before its segments, of two numbers each."""

WITHOUT_TABLE = -1


class Kind(IntEnum):
    """What a step is."""

    END = 0  # there will be none
    WHOLE = 1  # without a cache: a prompt is scored
    PAGED = 2


@dataclass
class StepMessage:
    """One step's numbers."""

    kind: Kind
    tokens: int
    rows: int
    decodes: int
    width: int  # of the decodes' block tables
    segments: list[tuple[int, int]]  # each chunk's end in the batch, and the blocks of its table or WITHOUT_TABLE
    payload: Tensor

    @classmethod
    def end(cls) -> "StepMessage":
        """The last message."""
        return cls(Kind.END, 0, 0, 0, 0, [], torch.empty(0, dtype=torch.int64))

    @classmethod
    def of(cls, batch: ForwardBatch, cache: Any) -> "StepMessage":
        """What the others need to know of `batch`, which `cache.begin` has just been called for, if it is paged."""
        parts = [batch.input_ids, batch.positions, batch.rows]
        sizes = (len(batch.input_ids), len(batch.rows))
        if list(batch.attention) != cache.layers:
            return cls(Kind.WHOLE, *sizes, 0, 0, [], torch.cat(parts))
        step = cache.step
        tables = [segment.table for segment in step.segments]
        segments = [
            (segment.rows.stop, WITHOUT_TABLE if table is None else len(table))
            for segment, table in zip(step.segments, tables, strict=True)
        ]
        parts += [step.slots, step.tables.flatten(), *(table for table in tables if table is not None)]
        decodes = len(step.tables)
        width = step.tables.shape[1] if decodes else 0
        return cls(Kind.PAGED, *sizes, decodes, width, segments, torch.cat(parts))

    def header(self, number: int, length: int) -> Tensor:
        """int64 `(length,)`."""
        facts = [number, self.kind, self.tokens, self.rows, self.decodes, self.width, len(self.segments)]
        flat = [*facts, *(n for segment in self.segments for n in segment)]
        return torch.tensor(flat + [0] * (length - len(flat)))

    @classmethod
    def announced(cls, header: list[int], device: torch.device) -> "StepMessage":
        """The message of a header; its payload is still to come."""
        _, kind, tokens, rows, decodes, width, count = header[:FACTS]
        flat = header[FACTS : FACTS + 2 * count]
        segments = list(zip(flat[::2], flat[1::2], strict=True))
        paged = tokens + decodes * width + sum(max(blocks, 0) for _, blocks in segments)
        size = 2 * tokens + rows + (paged if kind == Kind.PAGED else 0)
        payload = torch.empty(size, dtype=torch.int64, device=device)
        return cls(Kind(kind), tokens, rows, decodes, width, segments, payload)

    def batch(self, attention: Items[Attention], cache: Any) -> ForwardBatch:
        """The step's batch for this rank's shard: `attention` for a prompt that is scored, else that of `cache`."""
        sizes = [self.tokens, self.tokens, self.rows]
        input_ids, positions, rows, rest = self.payload.split([*sizes, len(self.payload) - sum(sizes)])
        if self.kind is Kind.PAGED:
            attention = self._begin(cache, positions, rest)
        return ForwardBatch(input_ids, positions, attention, rows, [])

    def _begin(self, cache: Any, positions: Tensor, rest: Tensor) -> Items[Attention]:
        blocks = [max(count, 0) for _, count in self.segments]
        slots, flat, *own_tables = rest.split([self.tokens, self.decodes * self.width, *blocks])
        start, segments = self.decodes, []
        for (stop, count), table in zip(self.segments, own_tables, strict=True):
            own = None if count == WITHOUT_TABLE else table
            segments.append(cache.segment(slice(start, stop), positions[start:stop], own))
            start = stop
        tables = flat.view(self.decodes, self.width)
        masks = cache.decode_masks(positions[: self.decodes], self.width * cache.block_size) if self.decodes else {}
        cache.step = PagedStep(slots, tables, masks, segments)
        empty_begun_blocks(cache, slots)
        return list(cache.layers)


def empty_begun_blocks(cache: Any, slots: Tensor) -> None:
    """Zero the blocks whose first slot a step writes: rank 0 has just handed them out, and emptied its own."""
    blocks = torch.where(slots % cache.block_size == 0, slots // cache.block_size, cache.scratch)
    cache.pool.index_fill_(2, blocks, 0)


def header_length(max_batch: int) -> int:
    """Numbers in every header of an engine that runs up to `max_batch` requests in a step."""
    return FACTS + 2 * max_batch


# ==== phase10/ranks.py ==============================================================================================
# Ranks: one rank's view of the others: its place, its groups, and the protocol of a step.
#
#     rank 0      announce -> forward -> the last stage's logits       it alone schedules and samples
#     others      next_step -> forward, and give on                    they compute what they are told
#
# Invariant: all ranks run the same steps in the same order. A step has a number, and another one than expected is an
# error; whatever goes wrong within a step on rank 0 ends all ranks, since the others wait somewhere inside it.


class Others(ABC):
    """Those who run the other ranks, as rank 0 sees them."""

    @abstractmethod
    def loaded(self) -> None:
        """Wait until every rank has its weights. Raises `RankError` if one has failed."""

    @abstractmethod
    def blame(self, error: RankError) -> RankError:
        """An error that says which rank is to blame and what it said; `error` is how it was noticed here."""

    @abstractmethod
    def end(self) -> None:
        """Leave none behind; idempotent."""


# ==== phase10/meeting.py ============================================================================================
# Meeting: where a rank has its device, and how it meets the others and gets its groups.


LOCAL = "127.0.0.1"


def device_of(wanted: Any, local_rank: int) -> Device:
    """The device of a rank: the CPU for all, or one GPU each from the one that was asked for on."""
    device = Device.get(wanted)
    if device.torch_device.type == "cpu":
        return device
    return Device.get(f"{device.torch_device.type}:{(device.torch_device.index or 0) + local_rank}")


# ==== phase10/processes.py ==========================================================================================
# Processes: the other ranks as processes that rank 0 has started: their signs of life, their errors, their end.
#
# Each has a pipe to read from, through which rank 0 holds it: when that closes, by whatever end of rank 0, it leaves. On
# its standard output it says, a JSON line each, what it has done; what else it prints goes to a file, for its last words.


START_SECONDS = 60.0
"""Within which a process must have imported torch."""

GRACE_SECONDS = 2.0
"""How long after the first sign of trouble rank 0 waits for the failed process's own words, or its end."""

LAST_WORDS = 2000  # characters


class Process:
    """One rank's process, or a replica's: `main` is all that it runs.

    `name` is what errors call it (`rank 1`); `threads` are torch's; `keep`: file descriptors that it inherits; `cores`:
    those that it may run on.
    """

    def __init__(
        self,
        name: str,
        job: Job,
        main: Callable[[], None],
        threads: int,
        keep: Items[int] = (),
        cores: Items[int] = CORES,
    ) -> None:
        self.name, self.rank = name, job.rank
        self.said: set[str] = set()
        self.error = ""
        self.is_cause = False  # else its error is only that others were gone
        self.heard = time.monotonic()
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process is buried)
        packed = job.packed()
        self.popen = subprocess.Popen(
            command(main),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.printed,
            env=environment(threads),
            pass_fds=keep,
        )
        run_on(cores, self.popen.pid)  # before it has any other threads
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        self.stdin.write(packed)
        self.stdin.flush()
        self.listener = threading.Thread(target=self.listen, daemon=True, name=f"{name} says")
        self.listener.start()

    def listen(self) -> None:
        """Take down what it says, to the end."""
        for line in self.stdout:
            said = json.loads(line)
            self.said.add(said["said"])
            self.error = said.get("error", self.error)
            self.is_cause = said.get("is_cause", self.is_cause)
            self.heard = time.monotonic()

    @property
    def is_dead(self) -> bool:
        """Whether it has ended or failed."""
        return bool(self.error) or self.popen.poll() is not None

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end: whether it came."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        return self.is_dead

    def obituary(self) -> str:
        """What it died of, in its own words if it had any."""
        self.listener.join(1.0)
        if self.error:
            return f"{self.name} failed:\n{self.error}"
        code = self.popen.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"{self.name} {how}{self.last_words()}"

    def last_words(self) -> str:
        """The end of what it printed, until it is buried."""
        text = ""
        with suppress(ValueError):  # the file is closed
            self.printed.seek(0)
            text = self.printed.read().decode(errors="replace").strip()
        return f"; it printed:\n{text[-LAST_WORDS:]}" if text else ""

    def let_go(self) -> None:
        """Close its pipe, on which it leaves."""
        with suppress(OSError):
            self.stdin.close()

    def bury(self, timeout: float) -> None:
        """Wait for its end; if that does not come, kill it."""
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.listener.join(1.0)
        self.stdout.close()
        self.printed.close()


def environment(threads: int) -> dict[str, str]:
    """A child's: it finds this very minfer, and has as many threads as it may use."""
    package = str(Path(minfer.__file__).parents[1])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": str(threads)}
    return {**{k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}, **ours}


# ==== phase10/worker.py =============================================================================================
# What the process of a rank that is not the first runs: `run_rank`, started by `Processes`.
#
# It reads its job from standard input, serves until that closes, and says on standard output what it has done.


class Voice:
    """Standard output as rank 0 hears it: JSON lines. Whatever else prints goes to standard error."""

    def __init__(self) -> None:
        self.stream = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, what: str, **more: Any) -> None:
        """One line; rank 0 may be gone."""
        try:
            self.stream.write(json.dumps({"said": what, **more}) + "\n")
            self.stream.flush()
        except OSError:
            os._exit(1)


def leave_with_parent(parent: int) -> None:
    """End this process, wherever it is, when rank 0 closes the pipe or is gone."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], 1.0)
        if ready and not os.read(0, 1):
            break
    os._exit(0)


def read_line() -> bytes:
    """The job; unbuffered, since another thread reads on."""
    line = b""
    while not line.endswith(b"\n"):
        some = os.read(0, 65536)
        if not some:
            os._exit(0)
        line += some
    return line


def run(work: Callable[[Job, Voice], None]) -> None:
    """Do the job that comes, and end the process. 0: rank 0 has ended; 1: something has failed, and rank 0 was told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which then closes the pipe
    voice, parent = Voice(), os.getppid()
    job = Job.unpacked(read_line())
    threading.Thread(target=leave_with_parent, args=(parent,), daemon=True).start()
    try:
        work(job, voice)
    except RankError as error:
        voice.say("failed", error=str(error))
    except BaseException:
        voice.say("failed", error=traceback.format_exc(), is_cause=True)
    else:
        os._exit(0)
    sys.stderr.flush()
    os._exit(1)


# ==== phase10/launcher.py ===========================================================================================
# Launchers: where the other ranks come from: processes that this one starts, or those that torchrun has started.


LOAD_SECONDS = 600.0
"""Within which torchrun's ranks must have loaded. Processes that rank 0 starts report each tensor: see `Processes`."""

_engines = count()


class Threads(Others):
    """The other ranks as threads of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def loaded(self) -> None:
        """They are waited for in the first operation."""

    def blame(self, error: RankError) -> RankError:
        """As `Others`."""
        return RankError(self.world.failure() or str(error))

    def end(self) -> None:
        """As `Others`."""
        self.world.end()


class TorchrunOthers(Others):
    """The other ranks as processes of torchrun, which ends them all when one fails."""

    def __init__(self, store: Any, world: int) -> None:
        self.store, self.world = store, world

    def loaded(self) -> None:
        """As `Others`."""
        names = [f"loaded{rank}" for rank in range(1, self.world)]
        try:
            self.store.wait(names, timedelta(seconds=LOAD_SECONDS))
        except RuntimeError as error:
            raise RankError(f"not all ranks have loaded the model within {LOAD_SECONDS:g} s: {error}") from error

    def blame(self, error: RankError) -> RankError:
        """Each rank prints its own error."""
        return error

    def end(self) -> None:
        """They leave when they are told, or when they lose this one."""


# ==== phase10/parallel_layers.py ====================================================================================
# Parallel layers: what stands in a rank's shard where a layer's work is shared with other ranks.
#
# Columns need nothing: a plain linear layer with fewer outputs. So a layer has two sums over the ranks: after attention's
# output product and after the MLP's.


class NoPositions(nn.Module):
    """In place of learned positions, where a stage is not the first: they were added there."""

    def forward(self, positions: Tensor) -> Any:
        """Nothing to add."""
        return 0.0


# ==== phase10/quantized_rows.py =====================================================================================
# Row-parallel weights quantised as the whole model's are: a channel has one scale, whichever ranks have its columns.
#
# Column-parallel layers need nothing: their channels are whole. Scales of groups of columns (int4) are the whole's too,
# where ranks have whole groups (`shard_plan.GRANULES`).


def quantized(weight: torch.Tensor, scheme: PerChannel, group: Group) -> QuantizedLinear:
    """The columns `weight (out, own)` of a row-parallel layer, with the scales of all ranks' columns together.

    They get one column more, of each channel's largest weight anywhere, which says the scale and is then left out.
    """
    largest = group.all_gather(weight.abs().amax(-1)).amax(0)
    parts = scheme.encode(torch.cat([weight, largest[:, None]], dim=1), "a row-parallel weight")
    with torch.device("meta"):
        layer = QuantizedLinear(weight.shape[1], weight.shape[0], scheme)
    layer.hold({**parts, "codes": parts["codes"][:, :-1].contiguous()})
    return layer


# ==== phase10/replica_message.py ====================================================================================
# What is said of requests between an engine and its replicas; tokens and numbers, never tensors.


@dataclass(frozen=True)
class Take:
    """A request for the replica to answer, with the seed that its draws depend on."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    index: int
    seed: int
    eos_token_ids: tuple[int, ...]
    context: int

    @classmethod
    def of(cls, sequence: Sequence, eos_token_ids: tuple[int, ...]) -> "Take":
        """The request that `sequence` is."""
        facts = (sequence.params, sequence.index, sequence.seed)
        return cls(sequence.id, sequence.prompt_ids, *facts, eos_token_ids, sequence.context)

    def sequence(self, tokenizer: Tokenizer | None, arrived: float) -> Sequence:
        """The same request in the replica."""
        made = Sequence(
            self.prompt_ids,
            self.params,
            tokenizer=tokenizer,
            eos_token_ids=self.eos_token_ids,
            context=self.context,
            index=self.index,
            arrived=arrived,
        )
        made.id, made.seed = self.id, self.seed
        return made


class TakeBack(NamedTuple):
    """Nobody waits for that request any longer."""

    id: int


class Advance(NamedTuple):
    """What is new of a request: tokens that were drawn, or how it failed.

    `waited` is from its arrival in the replica to the first step that had it: a duration, since clocks of two
    processes are not compared.
    """

    id: int
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob | None] | None
    shared: int  # of the prompt's tokens, those that the cache held
    waited: float
    drawing: float | None
    error: Exception | None

    @classmethod
    def of(cls, sequence: Sequence, told: int) -> "Advance":
        """What is new since `told` tokens were told of."""
        stamps = sequence.timestamps
        waited = (stamps.scheduled or stamps.arrived) - stamps.arrived
        return cls(
            sequence.id,
            sequence.output_ids[told:],
            sequence.logprobs[told:],
            sequence.prompt_logprobs,
            sequence.num_shared,
            waited,
            stamps.drawing,
            portable(sequence.error),
        )

    def apply(self, sequence: Sequence, given: float, now: float) -> None:
        """Let the request that was given at `given` know of it at `now`: each token by the same stop rules."""
        stamps = sequence.timestamps
        if stamps.scheduled is None:
            stamps.scheduled = min(now, given + self.waited)
            stamps.drawing = self.drawing or 0.0
            sequence.prompt_logprobs, sequence.num_shared = self.prompt_logprobs, self.shared
        sequence.logprobs += self.logprobs
        for token_id in self.token_ids:
            sequence.append(token_id, now)
        if self.error is not None:
            sequence.error = self.error
            sequence.finish(FinishReason.ABORT, now)


def portable(error: Exception | None) -> Exception | None:
    """An error that can be said; one that cannot, in words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return MinferError(f"{type(error).__name__}: {error}")
    return error


# ==== phase10/replica_worker.py =====================================================================================
# What the process of a replica that is not the first runs: `run_replica`, started by `Replicas`.


class ReplicaWorker:
    """Serves the requests that come over `link`, and says there after each step what is new.

    Over `questions` come functions of this worker, which are called between two steps. `stepper` takes the steps: the
    engine, until such a function puts somebody in its place who steers or watches it.
    """

    def __init__(self, engine: Any, link: Connection, questions: Connection) -> None:
        self.engine, self.link, self.questions = engine, link, questions
        self.stepper: Any = engine
        self.told: dict[int, int] = {}  # id of a request -> tokens that were told of

    def serve(self) -> None:
        """Until a connection closes. With nothing to do it waits for what comes."""
        while True:
            if not self.told:
                wait([self.link, self.questions])
            self.read()
            while self.questions.poll(0):
                self.answer(*self.questions.recv())
            if self.told:
                self.say(self.stepper.step())

    def read(self) -> None:
        """Hear all that has come."""
        while self.link.poll(0):
            self.hear(self.link.recv())

    def answer(self, number: int, question: Callable[["ReplicaWorker"], Any]) -> None:
        """Send what `question` returns, or the error that it raises; requests that were sent before it come first."""
        self.read()
        try:
            answer = question(self)
        except Exception as error:
            answer = portable(error)
        self.questions.send((number, answer))

    def hear(self, message: Any) -> None:
        """Do what is asked."""
        if isinstance(message, Take):
            self.told[message.id] = 0
            self.engine.inbox.append(message.sequence(self.engine.tokenizer, self.engine.device.clock()))
        elif isinstance(message, TakeBack):
            self.told.pop(message.id, None)
            self.engine.abort(message.id)

    def say(self, advanced: list[Sequence]) -> None:
        """What is new of these. Raises `RankError` if this replica has lost one of its own ranks."""
        raise_if_lost(advanced)
        new = [Advance.of(sequence, self.told[sequence.id]) for sequence in advanced if sequence.id in self.told]
        for sequence in advanced:
            if sequence.finished:
                self.told.pop(sequence.id, None)
            elif sequence.id in self.told:
                self.told[sequence.id] = len(sequence.output_ids)
        if new:
            self.link.send(new)


def raise_if_lost(advanced: list[Sequence]) -> None:
    """Raise the `RankError` that ended a request: its engine has lost a rank, and can answer nobody any more."""
    for sequence in advanced:
        if isinstance(sequence.error, RankError):
            raise sequence.error


def work_as_replica(job: Job, voice: Voice) -> None:
    """Load the engine, with ranks of its own if asked for, and serve."""
    voice.say("started")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    engine = find(*job.engine).load(job.model, **job.options)
    voice.say("loaded")
    ReplicaWorker(engine, *map(Connection, job.links)).serve()


def state_of(worker: ReplicaWorker) -> dict[str, Any]:
    """A question: what the replica's scheduler and pool hold."""
    return worker.engine.debug_state()


def usage_of(worker: ReplicaWorker) -> Any:
    """A question: how much of the replica's cache holds something."""
    return worker.engine.kv_usage()


def run_replica() -> None:
    """The whole of a replica's process."""
    run(work_as_replica)


# ==== phase10/replicas.py ===========================================================================================
# Replicas: further engines of the same model, each a process, that answer requests of one engine's queue.
#
#     replica 0     the engine that was loaded, in this process: it deals requests out, and takes in what comes back
#     the others    step by themselves, as long as they have requests
#
# Each may be dealt to ranks of its own. A request goes to whoever has the fewest, when one has room.


LOAD_SECONDS = 600.0
"""Within which a replica must have loaded, and compiled and recorded whatever it does."""


@dataclass(frozen=True)
class Given:
    """A request that a replica has, and when it was given, by the engine's clock."""

    sequence: Sequence
    at: float


# ==== phase10/shard.py ==============================================================================================
# Shard: one rank's part of a model, built on its device from its slices of the files alone.


Home = Callable[[str], torch.device]
"""From a parameter's name in the shard to the device that it is to lie on."""


class Names(NamedTuple):
    """What the parts of a model are called that a shard exchanges."""

    blocks: str
    embedding: str
    norm: str
    row_parallel: tuple[str, str]  # within a block


LLAMA = Names("layers", "embed_tokens", "norm", ("self_attn.o_proj", "mlp.down_proj"))
GPT_2 = Names("h", "wte", "ln_f", ("attn.c_proj", "mlp.c_proj"))


def set_parameter(model: nn.Module, name: str, weight: Tensor) -> None:
    """Put `weight` where `model` has only the shape of the parameter `name`, and tell its layer the new sizes."""
    path, _, leaf = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    setattr(owner, leaf, nn.Parameter(weight, requires_grad=False))
    if isinstance(owner, nn.Linear) and leaf == "weight":
        owner.out_features, owner.in_features = weight.shape


def part_bytes(source: TensorSource, part: Part) -> int:
    """Bytes of the part as they are stored."""
    if part.dim is None:
        return source.nbytes
    return source.nbytes // source.shape[part.dim] * sum(map(len, part.ranges))


# ==== phase10/engine.py =============================================================================================
# Phase 10's change: `build_model` takes this rank's shard only, `forward` is one of all ranks together.


@dataclass(frozen=True)
class ParallelOptions(PreviousOptions):
    """Phase 10's options."""

    tensor_parallel: int = option(1, "ranks that share each layer's work; each has some heads and channels")
    pipeline_parallel: int = option(1, "stages of layers, one after another, each on ranks of its own")
    replicas: int = option(1, "engines that answer one queue, each with ranks of its own")
    rank_timeout: float = option(15.0, "seconds without an answer after which a rank counts as hung, and all end")
    ranks: Any = option("auto", "who runs the other ranks: auto (torchrun's if there are any), processes, torchrun")  # noqa: RUF009

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "tensor_parallel", 1)
        at_least(self, "pipeline_parallel", 1)
        at_least(self, "replicas", 1)
        if not 0 < self.rank_timeout < float("inf"):
            raise OptionsError(f"rank_timeout = {self.rank_timeout}: give a number of seconds above 0")

    @property
    def world(self) -> int:
        """How many ranks there are, of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @classmethod
    def of_replica(cls, given: dict[str, Any], checked: "ParallelOptions", number: int) -> dict[str, Any]:
        """The options of one replica, of those `given`: its own devices, or its share of the host's memory."""
        device = device_of(checked.device, number * checked.world).torch_device
        own = {"device": checked.device, "memory_share": checked.memory_share / checked.replicas}
        if device.type != "cpu":
            own = {"device": str(device)}
        return {**given, **own, "replicas": 1}
