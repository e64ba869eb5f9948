"""Phase 10, Multi-GPU: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 24 points. Deal: deal, deal_heads, ShardPlan.part
Task 2, 32 points. Sums and slices: RowParallel.forward, VocabularyEmbedding.forward, VocabularyHead.forward
Task 3, 8 points. Stages: FromPreviousStage.forward, ToNextStage.forward, Ranks.deliver
Task 4, 8 points. Each reads its own: read_part, fill
Task 5, 28 points. One decides: Engine.forward, Ranks.announce, Ranks.next_step, Replicas.least_loaded,
    Replica.take_back

Copy it (`minfer start 10`), write, then look what is right: `minfer check 10`, or
`pytest tests/phase10 --engine work/phase10.py`. Hints: `minfer hint 10 1`.
It builds on the reference of phase 9; to build on your own, import that instead.
"""

import os
import queue
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Sequence as AbcSequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from phase10_given import (
    CORES,
    GPT_2,
    GRACE_SECONDS,
    GRANULES,
    IDLE,
    LAYER,
    LLAMA,
    LOAD_SECONDS,
    LOCAL,
    START_SECONDS,
    Communication,
    Given,
    GlooGroup,
    Home,
    Job,
    Kind,
    NoPositions,
    Others,
    ParallelOptions,
    Part,
    Place,
    Process,
    ReplicaWorker,
    StepMessage,
    Take,
    TakeBack,
    Threads,
    TorchGroup,
    TorchrunOthers,
    Voice,
    _engines,
    channels,
    device_of,
    gloo,
    header_length,
    nccl,
    part_bytes,
    quantized,
    raise_if_lost,
    require_distributed,
    run,
    run_on,
    run_replica,
    set_parameter,
    state_of,
    usage_of,
)
from torch import Tensor, nn

from minfer.core.batch import ForwardBatch
from minfer.core.checkpoint import Checkpoint, StoredTensor, TensorSource
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.entry import find
from minfer.core.errors import OptionsError
from minfer.core.gpt2 import GPT2
from minfer.core.group import Group, RankError, World
from minfer.core.models import hollow, open_model, skeleton
from minfer.core.options import EngineOptions, make_options
from minfer.core.sequence import FinishReason, Sequence
from minfer.core.stored_quantization import PARTS, StoredQuantization
from minfer.phase9 import Engine as PreviousEngine
from minfer.phase9 import PerChannel, QuantizedLinear, Scheme, exchange_hollow, find_scheme

# ==== phase10/shard_plan.py =========================================================================================
# ShardPlan: which slice of which parameter belongs to which rank.
#
#     column-parallel   q, k, v, gate, up       a rank has some of the outputs: whole heads, or some of the inner channels
#     row-parallel      o_proj, down_proj       a rank has the inputs that its own outputs are; the results are summed
#     vocabulary        embedding and head      a rank has some rows, the same number on all: the last ones are padding
#     pipeline          layers                  a stage has some of them; the first the embedding, the last norm and head
#
# Everything else is small and on every rank (norms, biases of row-parallel layers, learned positions).


class ShardPlan:
    """The share of one rank in a model of `config`. Raises `OptionsError` where the model cannot be dealt out.

    `config` is then the shard's own: its heads, inner channels and layers; hidden size and vocabulary are the whole's.
    """

    def __init__(self, config: ModelConfig, place: Place) -> None:
        self.whole, self.place = config, place
        self.kv_heads, self.heads = deal_heads(config, place.part, place.parts)
        self.inner = deal(config.intermediate_size, place.part, place.parts, GRANULES)
        self.layers = deal(config.num_layers, place.stage, place.stages)
        self.rows = -(-config.vocab_size // place.parts)  # of the embedding and the head, padding included
        stored = config.quantization
        self.scheme = None if stored is None else find_scheme(stored.scheme, stored.group_size)
        self._refuse_too_many()
        self._refuse_cut_groups()
        self.config = replace(
            config,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
            num_layers=len(self.layers),
            windows=tuple(config.windows[layer] for layer in self.layers),
            tie_word_embeddings=config.tie_word_embeddings and place.stages == 1,
        )

    def _refuse_too_many(self) -> None:
        config, place = self.whole, self.place
        if place.stages > config.num_layers:
            raise OptionsError(
                f"pipeline_parallel = {place.stages}: the model has {config.num_layers} layers, and every stage needs "
                f"one: give at most {config.num_layers}"
            )
        if place.parts > min(config.intermediate_size, config.vocab_size):
            most = min(config.intermediate_size, config.vocab_size)
            raise OptionsError(f"tensor_parallel = {place.parts}: the model's narrowest layer has {most} channels")

    def _refuse_cut_groups(self) -> None:
        """Groups of columns that are stored with one scale stay whole."""
        size = 1 if self.scheme is None else max(map(self._columns, self.scheme.shapes(1, 1)))
        heads, whole = channels(self.heads, self.whole.head_dim), self.whole.num_heads * self.whole.head_dim
        for own, total in ((heads, whole), (self.inner, self.whole.intermediate_size)):
            cut = next((at for at in (own.start, own.stop) if at % size and at != total), None)
            if cut is not None:
                raise OptionsError(
                    f"tensor_parallel = {self.place.parts} cuts {total} columns at {cut}, within one of the groups of "
                    f"{size} that the model is stored in: give fewer ranks, or the original with quantization=…"
                )

    @property
    def vocabulary(self) -> range:
        """The token ids whose rows this rank has; those of padding belong to no token."""
        first = self.place.part * self.rows
        return range(first, max(first, min(first + self.rows, self.whole.vocab_size)))

    @property
    def head_rows(self) -> int:
        """Of the head, those that this rank multiplies with, padding included; 0 where the head is on another stage."""
        return self.rows if self.place.is_last else 0

    def communication(self, itemsize: int) -> Communication:
        """What this rank says and hears of a step, in activations of `itemsize` bytes."""
        place, hidden, vocabulary = self.place, self.whole.hidden_size, self.whole.vocab_size
        last_sums = 2 if place.parts > 1 and place.is_last else 0
        sums = 2 * len(self.layers) + place.is_first - last_sums if place.parts > 1 else 0
        stages_beside = (not place.is_first) + (not place.is_last)
        gathered = self.rows * place.parts if place.parts > 1 and place.is_last else 0
        gives_logits = place.stages > 1 and (place.rank == 0 or (place.is_last and place.part == 0))
        per_row = hidden * last_sums + gathered + (vocabulary if gives_logits else 0)
        return Communication(itemsize * hidden * (sums + stages_beside), itemsize * per_row)

    def name_in_whole(self, name: str) -> str:
        """The whole model's name of a parameter of the shard: layers are numbered from 0 on every stage."""
        name = re.sub(r"\.(linear|quantized)\.", ".", name)
        if name == "lm_head.weight" and self.whole.tie_word_embeddings:
            return "wte.weight" if self.whole.architecture == "GPT2LMHeadModel" else "embed_tokens.weight"
        return LAYER.sub(lambda found: f"{found[1]}.{self.layers[int(found[2])]}.", name)

    def part(self, name: str) -> Part:
        """Which slice of the whole model's parameter `name` is this rank's."""
        raise NotImplementedError("P10 task 1: ShardPlan.part")

    def _entries(self, kind: str, columns: AbcSequence[range]) -> list[range]:
        """Where these columns are in the part `kind` of a weight that is stored quantised."""
        each = self._columns(kind)
        return [range(some.start // each, -(-some.stop // each)) for some in columns if each]

    def _columns(self, kind: str) -> int:
        """How many columns share an entry of the part `kind`: two a byte of codes, a group a scale; 0 means all."""
        assert self.scheme is not None
        shape, _ = self.scheme.shapes(1, GRANULES[0])[kind]
        return GRANULES[0] // shape[1] if len(shape) > 1 else 0

    def _ranges(self, layer: str, owner: str) -> list[range]:
        """The channels of a layer that are this rank's; none if it is on all ranks as a whole."""
        heads, kv_heads = (channels(some, self.whole.head_dim) for some in (self.heads, self.kv_heads))
        third = self.whole.num_heads * self.whole.head_dim
        by_layer = {
            "q_proj": [heads],
            "k_proj": [kv_heads],
            "v_proj": [kv_heads],
            "o_proj": [heads],
            "c_attn": [range(heads.start + i * third, heads.stop + i * third) for i in range(3)],
            "c_proj": [heads if owner == "attn" else self.inner],
        }
        by_layer |= {name: [self.inner] for name in ("gate_proj", "up_proj", "down_proj", "c_fc")}
        by_layer |= {name: [self.vocabulary] for name in ("embed_tokens", "wte", "lm_head")}
        return by_layer.get(layer, [])


def deal(total: int, index: int, count: int, lots: AbcSequence[int] = ()) -> range:
    """The share `index` of `count` in `total` things, as even as can be; in lots of the first size that comes out."""
    raise NotImplementedError("P10 task 1: deal")


def deal_heads(config: ModelConfig, part: int, parts: int) -> tuple[range, range]:
    """The key/value heads and the query heads of one rank; a query head is where its key/value head is.

    With fewer key/value heads than ranks, each is on as many ranks, which share its query heads. Raises `OptionsError`.
    """
    raise NotImplementedError("P10 task 1: deal_heads")


# ==== phase10/cores.py ==============================================================================================
# Cores: those of this process, dealt out to the ranks of an engine, and taken back when no engine has a share.


def share(cores: AbcSequence[int], rank: int, world: int) -> AbcSequence[int]:
    """The cores of a rank, as even as can be; all of them if there are not enough for each to have its own."""
    own = deal(len(cores), rank, world)
    return cores[own.start : own.stop] if len(cores) >= world else cores


class OwnShare:
    """Rank 0's share of cores and torch's threads, in the thread that loads an engine of `world` ranks.

    Several engines may have one at a time, and give it back in any order: the last one brings back what was before all.
    """

    held: "list[OwnShare]" = []  # noqa: RUF012 (of all engines of this process)
    threads_before = 1

    def __init__(self, world: int) -> None:
        if not self.held:
            OwnShare.threads_before = torch.get_num_threads()
        self.thread = threading.get_native_id()
        self.threads = max(1, self.threads_before // world)
        self.held.append(self)
        torch.set_num_threads(self.threads)
        run_on(share(CORES, 0, world), self.thread)

    def give_back(self) -> None:
        """Idempotent."""
        if self not in self.held:
            return
        self.held.remove(self)
        if not self.held:
            torch.set_num_threads(self.threads_before)
        if all(other.thread != self.thread for other in self.held):
            run_on(CORES, self.thread)


# ==== phase10/ranks.py ==============================================================================================
# Ranks: one rank's view of the others: its place, its groups, and the protocol of a step.
#
#     rank 0      announce -> forward -> the last stage's logits       it alone schedules and samples
#     others      next_step -> forward, and give on                    they compute what they are told
#
# Invariant: all ranks run the same steps in the same order. A step has a number, and another one than expected is an
# error; whatever goes wrong within a step on rank 0 ends all ranks, since the others wait somewhere inside it.


class Ranks:
    """The world as one rank sees it: `device` is its own, `local` ranks are on this machine.

    `world` and `tensor` are the groups of all ranks and of this stage's; `host` is one of all for tensors on the CPU,
    on which a rank waits for its next step, for as long as it takes. `say` tells rank 0 what this one has done.
    """

    def __init__(
        self,
        place: Place,
        device: Device,
        groups: tuple[Group, Group, Group],
        local: int,
        others: Others | None = None,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.place, self.device, self.local, self.others, self.say = place, device, local, others, say
        self.groups = groups
        self.world, self.tensor, self.host = groups
        self.plan: ShardPlan | None = None  # once the model is dealt
        self.steps = 0
        self.header = 0  # numbers in it
        self.bytes_read: list[int] = []
        self.ended = ""
        self.in_step = False

    @property
    def nbytes(self) -> int:
        """Of all operations so far, as counted; those within a recorded graph count once, when it is recorded."""
        return sum(group.nbytes for group in self.groups)

    @property
    def decides(self) -> bool:
        """Whether this is rank 0."""
        return self.place.rank == 0

    def begin(self, max_batch: int, bytes_read: int) -> None:
        """This rank's weights are there: wait until all have theirs; from now on steps are announced."""
        self.header = header_length(max_batch)
        self.say("loaded")
        if self.others is not None:
            self.others.loaded()
        self.bytes_read = self.host.all_gather(torch.tensor([bytes_read])).flatten().tolist()

    @contextmanager
    def equal_memory(self) -> Iterator[None]:
        """In here the device says that as much is free as is on the rank with the least, so all plan alike.

        Ranks that share a machine's memory count a share of it each.
        """
        sharing = self.local if self.device.torch_device.type == "cpu" else 1
        free = self.host.all_gather(torch.tensor([self.device.free_memory() // sharing]))
        least = int(free.min())
        self.device.free_memory = lambda: least  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.device.free_memory

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In here operations between ranks are skipped, and what the others would have sent counts as zero."""
        self.world.alone = self.tensor.alone = True
        try:
            yield
        finally:
            self.world.alone = self.tensor.alone = False

    # ---- a step --------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """What is done in here is done on all ranks. An error ends them all. Raises `RankError` if they have ended."""
        if self.ended:
            raise RankError(f"the other ranks have ended: {self.ended}; load the model again")
        self.in_step = True
        try:
            yield
        except RankError as error:
            blamed = self.others.blame(error) if self.others else error
            self.close(str(blamed))
            raise blamed from error
        except BaseException as error:
            self.close(f"rank {self.place.rank} failed within a step: {type(error).__name__}: {error}")
            raise
        finally:
            self.in_step = False

    def announce(self, message: StepMessage) -> None:
        """Tell the others of the step that begins."""
        raise NotImplementedError("P10 task 5: Ranks.announce")

    def next_step(self, device: torch.device) -> StepMessage:
        """Wait for a step. Raises `RankError` if it is not the one that comes next here."""
        raise NotImplementedError("P10 task 5: Ranks.next_step")

    def deliver(self, out: Tensor, rows: int, vocabulary: int) -> Tensor:
        """Bring the logits `(rows, vocabulary)` from the last stage, where they are `out`, to rank 0, if it is another.

        Returns them on rank 0, `out` elsewhere.
        """
        raise NotImplementedError("P10 task 3: Ranks.deliver")

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self, why: str = "") -> None:
        """End all ranks, if this is rank 0; idempotent. `why`: what has gone wrong, if the others cannot be told.

        Nor can they in the middle of a step, where another thread, at the end of the process, leaves one that hangs.
        """
        if self.ended:
            return
        if self.decides and self.header and not why and not self.in_step:
            with suppress(RankError):
                self.announce(StepMessage.end())
        self.ended = why or "the engine was closed"
        if self.others is not None:
            self.others.end()
        for group in self.groups:
            group.leave()


# ==== phase10/meeting.py ============================================================================================
# Meeting: where a rank has its device, and how it meets the others and gets its groups.


def connect(
    store: Any,
    place: Place,
    device: Device,
    timeout: float,
    host: str,
    local: int,
    others: Others | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> Ranks:
    """Meet the other ranks in `store` and make the groups; `local` ranks are on this machine, known as `host`.

    Called on all ranks, which need not be there yet. On the CPU all goes through Gloo; tensors on GPUs through NCCL,
    and what the host must know of a step through Gloo.
    """
    all_ranks = gloo(store, "world", place.rank, place.world, host, timeout)
    host_group = GlooGroup(all_ranks, timeout if place.rank == 0 else IDLE)
    stage = (f"stage{place.stage}", place.part, place.parts)
    if device.torch_device.type == "cpu":
        parts = gloo(store, *stage, host, timeout) if place.stages > 1 else all_ranks
        world: TorchGroup = GlooGroup(all_ranks, timeout)
        tensor: TorchGroup = GlooGroup(parts, timeout)
    else:
        world = TorchGroup(nccl(store, "nccl-world", place.rank, place.world, timeout), timeout)
        tensor = TorchGroup(nccl(store, *stage, timeout), timeout)
    return Ranks(place, device, (world, tensor, host_group), local, others, say)


# ==== phase10/processes.py ==========================================================================================
# Processes: the other ranks as processes that rank 0 has started: their signs of life, their errors, their end.
#
# Each has a pipe to read from, through which rank 0 holds it: when that closes, by whatever end of rank 0, it leaves. On
# its standard output it says, a JSON line each, what it has done; what else it prints goes to a file, for its last words.


class Processes(Others):
    """All other ranks' processes, on this machine; all ranks share evenly the cores and threads that this process had.

    Each has cores of its own: all wait for the slowest twice in a layer, and where two of them take turns on one core
    while another is free, that is as long as the scheduler lets each have it.
    """

    def __init__(self, job: Job, main: Callable[[], None], world: int, timeout: float) -> None:
        self.timeout = timeout
        self.share = OwnShare(world)
        self.all: list[Process] = []
        try:
            for rank in range(1, world):
                cores = share(CORES, rank, world)
                self.all.append(Process(f"rank {rank}", replace(job, rank=rank), main, self.share.threads, cores=cores))
        except BaseException:
            self.end()
            raise

    def started(self) -> None:
        """Wait until all are there."""
        try:
            self.wait_for("started", START_SECONDS)
        except RankError as error:
            raise self.blame(error) from error

    def loaded(self) -> None:
        """As `Others`; each tensor that a rank has read is a sign of life."""
        self.wait_for("loaded", self.timeout)

    def wait_for(self, what: str, timeout: float) -> None:
        """Until all have said `what`, as long as none fails and none is silent for `timeout` seconds."""
        since = time.monotonic()
        while waiting := [process for process in self.all if what not in process.said]:
            silent = [p for p in waiting if time.monotonic() - max(p.heard, since) > timeout]
            if any(process.is_dead for process in self.all) or silent:
                late = (silent or waiting)[0].rank
                raise RankError(f"rank {late} has not {what}, and said nothing for {timeout:g} s")
            time.sleep(0.005)

    def blame(self, error: RankError) -> RankError:
        """As `Others`: a rank that failed by itself, else one that died; if none did, all hang, as `error` says."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not any(p.is_dead for p in self.all) and time.monotonic() < deadline:
            time.sleep(0.01)
        while not any(p.is_cause or p.popen.poll() for p in self.all) and time.monotonic() < deadline:
            time.sleep(0.01)
        dead = sorted((p for p in self.all if p.is_dead), key=lambda p: (bool(p.error), not p.is_cause))
        causes = [p for p in dead if p.is_cause] or [p for p in dead if not p.error] or dead
        if causes:
            return RankError(causes[0].obituary())
        silent = any("started" not in process.said for process in self.all)
        limit = "in time" if silent else f"for {self.timeout:g} s (rank_timeout)"
        return RankError(f"no rank has failed, but one gave no answer {limit}: {error}")

    def end(self) -> None:
        """As `Others`."""
        processes, self.all = self.all, []
        for process in processes:
            process.let_go()
        for process in processes:
            process.bury(timeout=1.0)
        self.share.give_back()


# ==== phase10/worker.py =============================================================================================
# What the process of a rank that is not the first runs: `run_rank`, started by `Processes`.
#
# It reads its job from standard input, serves until that closes, and says on standard output what it has done.


def work(job: Job, voice: Voice) -> None:
    """Load the rank's shard and serve."""
    voice.say("started")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    place, device = Place.of(job.rank, job.parts, job.stages), device_of(job.options["device"], job.rank)
    store = dist.TCPStore(LOCAL, job.port, is_master=False)
    ranks = connect(store, place, device, job.timeout, LOCAL, place.world, say=voice.say)
    engine = find(*job.engine).load(job.model, **{**job.options, "ranks": ranks})
    engine.serve()


def run_rank() -> None:
    """The whole of a rank's process."""
    run(work)


# ==== phase10/launcher.py ===========================================================================================
# Launchers: where the other ranks come from: processes that this one starts, or those that torchrun has started.


class Launcher(ABC):
    """Starts the other ranks of an engine, or finds them."""

    @abstractmethod
    def launch(self, engine_cls: type, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """This rank's view of the world, with all ranks there. `checked` are the `options` as a dataclass."""


class ProcessLauncher(Launcher):
    """Starts the others on this machine, one process each; they end with the engine or with this process."""

    def launch(self, engine_cls: type, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """As rank 0. Raises `DeviceError` or `RankError`."""
        require_distributed()
        place = Place.of(0, checked.tensor_parallel, checked.pipeline_parallel)
        device = device_of(checked.device, 0)
        for rank in range(1, place.world):
            device_of(checked.device, rank)  # not there: refused here
        store = dist.TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False)
        job = Job.of(engine_cls, model, options, checked, store.port)
        others = Processes(job, run_rank, place.world, checked.rank_timeout)
        try:
            others.started()
            return connect(store, place, device, checked.rank_timeout, LOCAL, place.world, others)
        except BaseException:
            others.end()
            raise


class ThreadLauncher(Launcher):
    """Runs the others in threads of a `World`: for tests."""

    def __init__(self, world: World) -> None:
        self.world = world

    def launch(self, engine_cls: Any, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """As rank 0; the others run `engine_cls` too."""

        def ranks_of(rank: int) -> Ranks:
            place = Place.of(rank, checked.tensor_parallel, checked.pipeline_parallel)
            everyone = range(place.world)
            stage = range(place.stage * place.parts, (place.stage + 1) * place.parts)
            world, tensor, host = (self.world.group(rank, members) for members in (everyone, stage, everyone))
            others = Threads(self.world) if rank == 0 else None
            return Ranks(place, Device.get(checked.device), (world, tensor, host), place.world, others)

        self.world.start(
            checked.world, lambda rank: engine_cls.load(model, **{**options, "ranks": ranks_of(rank)}).serve()
        )
        return ranks_of(0)


class TorchrunLauncher(Launcher):
    """Takes the ranks that torchrun has started, on one host or several."""

    def launch(self, engine_cls: type, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """As the rank that the environment says. Raises `OptionsError` if there are more or fewer than asked for."""
        require_distributed()
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if world != checked.world:
            raise OptionsError(
                f"tensor_parallel = {checked.tensor_parallel} times pipeline_parallel = {checked.pipeline_parallel} "
                f"is {checked.world}, torchrun has started {world} ranks: start {checked.world}"
            )
        place = Place.of(rank, checked.tensor_parallel, checked.pipeline_parallel)
        from torch.distributed.rendezvous import rendezvous  # absent where torch.distributed is

        store, _, _ = next(rendezvous("env://", rank, world))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        device = device_of(checked.device, int(os.environ.get("LOCAL_RANK", rank)))
        host = LOCAL if local == world else os.uname().nodename
        prefix = f"minfer{next(_engines)}"  # the same on all ranks, which load engines in the same order
        own = dist.PrefixStore(prefix, store)
        others = TorchrunOthers(own, world) if rank == 0 else None

        def say(what: str) -> None:
            own.set(f"{what}{rank}", "")

        return connect(own, place, device, checked.rank_timeout, host, local, others, say)


def launcher_of(wanted: Any) -> Launcher:
    """The launcher that an option asks for: `auto`, `processes`, `torchrun`, or a world."""
    if isinstance(wanted, World):
        return ThreadLauncher(wanted)
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if wanted == "torchrun" and not under_torchrun:
        raise OptionsError("ranks = 'torchrun': RANK and WORLD_SIZE are not set: start this with torchrun")
    if wanted == "auto":
        wanted = "torchrun" if under_torchrun else "processes"
    launchers: dict[Any, type[Launcher]] = {"processes": ProcessLauncher, "torchrun": TorchrunLauncher}
    if wanted not in launchers:
        raise OptionsError(f"ranks = {wanted!r}: use auto, processes or torchrun")
    return launchers[wanted]()


# ==== phase10/parallel_layers.py ====================================================================================
# Parallel layers: what stands in a rank's shard where a layer's work is shared with other ranks.
#
# Columns need nothing: a plain linear layer with fewer outputs. So a layer has two sums over the ranks: after attention's
# output product and after the MLP's.


class RowParallel(nn.Module):
    """y = Σ over ranks of x·Wᵀ, + b. Each rank has the columns of W that its own channels of x meet.

    It wraps an `nn.Linear` rather than being one: what quantises or packs linear layers finds that, and the sum stays.
    """

    def __init__(self, linear: nn.Linear, group: Group) -> None:
        super().__init__()
        self.group = group
        self.out_features = linear.out_features
        self.bias: nn.Parameter | None = linear.bias
        linear.register_parameter("bias", None)
        self.linear: nn.Module = linear

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, own channels)` -> `(*lead, out)`, the same on all ranks; the bias is added once, to the sum."""
        raise NotImplementedError("P10 task 2: RowParallel.forward")


class VocabularyEmbedding(nn.Embedding):
    """Each rank knows the tokens from `first` on that it has rows for; the others are zero to it, and summed in."""

    def __init__(self, rows: int, width: int, first: int, group: Group) -> None:
        super().__init__(rows, width)
        self.first, self.group = first, group

    def forward(self, input_ids: Tensor) -> Tensor:
        """ids `(*lead,)` -> `(*lead, hidden)`, the same on all ranks."""
        raise NotImplementedError("P10 task 2: VocabularyEmbedding.forward")


class VocabularyHead(nn.Module):
    """Logits of each rank's tokens, gathered on all ranks and cut to the vocabulary: behind it are rows of padding."""

    def __init__(self, rows: int, width: int, vocabulary: int, group: Group) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = nn.Parameter(torch.empty(rows, width), requires_grad=False)
        self.quantized: nn.Module = nn.Identity()
        self.vocabulary, self.group = vocabulary, group

    def quantize(self, quantized: nn.Module) -> None:
        """Multiply by that in place of the weight, which stays with the embedding if they are tied."""
        self.weight, self.quantized = None, quantized

    def forward(self, x: Tensor) -> Tensor:
        """x `(*lead, hidden)` -> `(*lead, vocabulary)`."""
        raise NotImplementedError("P10 task 2: VocabularyHead.forward")


class FromPreviousStage(nn.Embedding):
    """In place of the embedding, where a stage is not the first: what the stage before has made of the tokens.

    An embedding of no rows, whose weight says dtype and device.
    """

    def __init__(self, width: int, group: Group, source: int) -> None:
        super().__init__(0, width)
        self.group, self.source = group, source

    def forward(self, input_ids: Tensor) -> Tensor:
        """ids `(*lead,)` -> `(*lead, hidden)`."""
        raise NotImplementedError("P10 task 3: FromPreviousStage.forward")


class ToNextStage(nn.Module):
    """In place of the head, where a stage is not the last."""

    def __init__(self, group: Group, to: int) -> None:
        super().__init__()
        self.group, self.next = group, to

    def forward(self, x: Tensor) -> Tensor:
        """Give x `(*lead, hidden)` on, and return it."""
        raise NotImplementedError("P10 task 3: ToNextStage.forward")


# ==== phase10/quantized_rows.py =====================================================================================
# Row-parallel weights quantised as the whole model's are: a channel has one scale, whichever ranks have its columns.
#
# Column-parallel layers need nothing: their channels are whole. Scales of groups of columns (int4) are the whole's too,
# where ranks have whole groups (`shard_plan.GRANULES`).


def quantize_rows_together(model: nn.Module, scheme: Scheme, group: Group) -> None:
    """Quantise the row-parallel layers of a shard by a scheme with a scale per channel; with another, do nothing."""
    if not isinstance(scheme, PerChannel):
        return
    for module in model.modules():
        if isinstance(module, RowParallel) and isinstance(module.linear, nn.Linear):
            module.linear = quantized(module.linear.weight, scheme, group)


def quantize_head(model: Any, scheme: Scheme) -> None:
    """Quantise this rank's rows of a head that ranks share; any other is a linear layer like all others."""
    head = model.lm_head
    if isinstance(head, VocabularyHead) and head.weight is not None:
        with torch.device("meta"):
            rows = nn.Linear(head.weight.shape[1], head.weight.shape[0], bias=False)
        rows.weight = head.weight
        head.quantize(QuantizedLinear.from_linear(rows, scheme, "lm_head"))


# ==== phase10/replicas.py ===========================================================================================
# Replicas: further engines of the same model, each a process, that answer requests of one engine's queue.
#
#     replica 0     the engine that was loaded, in this process: it deals requests out, and takes in what comes back
#     the others    step by themselves, as long as they have requests
#
# Each may be dealt to ranks of its own. A request goes to whoever has the fewest, when one has room.


class Replica:
    """One of the others, as this process sees it; `given` are the requests that it has and that are not finished.

    Requests and answers go over `link`; any thread may `ask`, over `questions`. The thread that steps only reads: were
    it to wait until a replica has read, which waits until what it says is read, both would for ever.
    """

    def __init__(self, number: int, process: Process, link: Connection, questions: Connection, patience: float) -> None:
        self.number, self.process, self.link = number, process, link
        self.questions, self.patience = questions, patience
        self.asking, self.asked = threading.Lock(), 0  # one thread at a time; questions so far
        self.given: dict[int, Given] = {}  # by id
        self.heard = time.monotonic()  # when it last said something, or began to have something to do
        self.outbox: queue.Queue[Any] = queue.Queue()  # None: the end
        self.sender = threading.Thread(target=self._send_all, daemon=True, name=f"to replica {number}")
        self.sender.start()

    def take(self, sequence: Sequence, eos_token_ids: tuple[int, ...], now: float) -> None:
        """Hand a request over."""
        if not self.given:
            self.heard = time.monotonic()
        self.given[sequence.id] = Given(sequence, now)
        self.send(Take.of(sequence, eos_token_ids))

    def take_back(self, request_id: int) -> Sequence | None:
        """A request that nobody waits for any longer; None if it has no such request."""
        raise NotImplementedError("P10 task 5: Replica.take_back")

    def ask(self, question: Callable[[ReplicaWorker], Any]) -> Any:
        """What `question` returns in the replica's process, between two steps: a function that pickle can name.

        From any thread; what was handed over before is on its way before the question is. Raises what the function
        raises, or `RankError` if there is no answer.
        """
        with self.asking:
            answer = self._answer(question)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, question: Callable[[ReplicaWorker], Any]) -> Any:
        self.asked += 1
        with self.outbox.all_tasks_done:
            self.outbox.all_tasks_done.wait_for(lambda: not self.outbox.unfinished_tasks, self.patience)
        try:
            self.questions.send((self.asked, question))
            while self.questions.poll(self.patience):
                number, answer = self.questions.recv()
                if number == self.asked:  # else it comes too late: whoever asked has given up
                    return answer
        except (EOFError, OSError) as error:
            raise self.lost(error) from error
        raise RankError(f"replica {self.number} gave no answer for {self.patience:g} s (rank_timeout)")

    def advance(self, clock: Callable[[], float]) -> list[Sequence]:
        """Take in what it has said. Returns the requests that advanced, or failed.

        `clock` is read when something has come: a token cannot be earlier than the step that drew it.
        """
        advanced = []
        while self.link.poll(0):
            news = self.receive()
            now = clock()
            for new in news:
                given = self.given.get(new.id)
                if given is None:  # taken back meanwhile
                    continue
                new.apply(given.sequence, given.at, now)
                advanced.append(given.sequence)
                if given.sequence.finished:
                    del self.given[new.id]
        return list(dict.fromkeys(advanced))  # each once: there may be news of several steps

    def send(self, message: Any) -> None:
        """Let it be sent behind what was given before; that the replica is gone is told by `receive`."""
        self.outbox.put(message)

    def _send_all(self) -> None:
        while (message := self.outbox.get()) is not None:
            with suppress(OSError):
                self.link.send(message)
            self.outbox.task_done()
        self.link.close()
        self.outbox.task_done()  # of the end: whoever asks hears it at once

    def receive(self) -> Any:
        """Raises `RankError` if it is gone."""
        try:
            message = self.link.recv()
        except (EOFError, OSError) as error:
            raise self.lost(error) from error
        self.heard = time.monotonic()
        return message

    def lost(self, error: Exception) -> RankError:
        """What it died of, in its own words if it had any, where `error` is that its connection has closed."""
        if self.process.ends_within(GRACE_SECONDS):
            return RankError(self.process.obituary())
        return RankError(f"replica {self.number} cannot be reached: {error}")


class Replicas:
    """All others. Invariant: a request is in this process's queue or scheduler, or `given` to just one of these."""

    def __init__(self, others: list[Replica], timeout: float, threads_before: int) -> None:
        self.all, self.timeout, self.threads_before = others, timeout, threads_before
        self.ended = ""

    @classmethod
    def start(cls, engine_cls: Any, model: str, options: dict[str, Any], checked: Any) -> "Replicas":
        """Start the processes; they load while this one does. Raises `DeviceError` or `OptionsError` before."""
        if isinstance(launcher_of(checked.ranks), TorchrunLauncher):
            raise OptionsError(
                f"replicas = {checked.replicas}: torchrun's ranks are one engine's; start one ordinary process, which "
                "starts the others itself (or set ranks=processes)"
            )
        for rank in range(checked.replicas * checked.world):
            device_of(checked.device, rank)  # not there: refused here
        threads = max(1, torch.get_num_threads() // checked.replicas)
        made = cls([], checked.rank_timeout, torch.get_num_threads())
        torch.set_num_threads(threads)
        try:
            for number in range(1, checked.replicas):
                own = engine_cls.Options.of_replica(options, checked, number)
                made.all.append(started(number, engine_cls, model, own, checked, threads))
        except BaseException:
            made.end("a replica could not be started")
            raise
        return made

    @contextmanager
    def loading(self) -> Iterator[None]:
        """In here this process loads its own; then it waits for the others. Raises `RankError` if one fails."""
        try:
            yield
            deadline = time.monotonic() + LOAD_SECONDS
            for replica in self.all:
                while "loaded" not in replica.process.said:
                    if replica.process.is_dead:
                        raise RankError(replica.process.obituary())
                    if time.monotonic() > deadline:
                        raise RankError(f"replica {replica.number} has not loaded within {LOAD_SECONDS:g} s")
                    time.sleep(0.005)
        except BaseException as error:
            self.end(str(error))
            raise

    def least_loaded(self, own: int) -> Replica | None:
        """Who has the fewest requests; None: this process, which has `own` of them."""
        raise NotImplementedError("P10 task 5: Replicas.least_loaded")

    def advance(self, clock: Callable[[], float], block: bool) -> list[Sequence]:
        """What is new. `block`: wait until something is, or nobody has anything to do. Raises `RankError`."""
        busy = [replica for replica in self.all if replica.given]
        ready = wait([replica.link for replica in busy], self.timeout if block else 0) if busy else []
        advanced = [one for replica in busy for one in replica.advance(clock)]
        late = time.monotonic() - self.timeout
        for replica in busy:
            if replica.given and replica.link not in ready and replica.heard < late:
                raise RankError(f"replica {replica.number} gave no answer for {self.timeout:g} s (rank_timeout)")
        return advanced

    def end(self, why: str = "the engine was closed") -> None:
        """Leave none behind; idempotent."""
        if self.ended:
            return
        self.ended = why
        for replica in self.all:
            replica.outbox.put(None)
            replica.process.let_go()  # `questions` stay open: another thread may be asking, and hears the end
        for replica in self.all:
            replica.process.bury(timeout=1.0)
            replica.sender.join(1.0)
        torch.set_num_threads(self.threads_before)


def started(number: int, engine_cls: type, model: str, options: dict[str, Any], checked: Any, threads: int) -> Replica:
    """Start a replica's process, with one end of each of two connections."""
    pairs = Pipe(), Pipe()
    links = tuple(theirs.fileno() for _, theirs in pairs)
    job = replace(Job.of(engine_cls, model, options, checked), rank=number, links=links)
    process = Process(f"replica {number}", job, run_replica, threads, keep=links)
    for _, theirs in pairs:
        theirs.close()
    (link, _), (questions, _) = pairs
    return Replica(number, process, link, questions, checked.rank_timeout)


# ==== phase10/replicated.py =========================================================================================
# Data parallelism: an engine whose queue is answered by itself and its replicas, the least loaded one first.


class ReplicatedEngine(PreviousEngine):
    """Deals requests out, and takes in what comes back. Without `replicas` it is the engine of the phase before.

    A replica that dies ends all, as a rank does: what is unfinished anywhere fails with its error.
    """

    replicas: Replicas | None = None

    def dispatch(self) -> None:
        """Deal the queue out, as long as anybody has room for another request in a step."""
        if self.replicas is None:
            super().dispatch()
            return
        while self.inbox:
            own = len(self.scheduler.running) + len(self.scheduler.waiting)
            replica = self.replicas.least_loaded(own)
            if (own if replica is None else len(replica.given)) >= self.options.max_batch:
                return
            sequence = self.inbox.popleft()
            if replica is None:
                self.scheduler.add(sequence)
            else:
                replica.take(sequence, self.reader.eos_token_ids, self.device.clock())

    def step(self) -> list[Sequence]:
        """As before, and what the others have done meanwhile; waits for them if there is nothing to do here."""
        if self.replicas is None:
            return super().step()
        with self.stepping:
            if self.replicas.ended:
                return self._fail_all(
                    RankError(f"the replicas have ended: {self.replicas.ended}; load the model again")
                )
            try:
                advanced = super().step()
                raise_if_lost(advanced)
                idle = not (advanced or self.launched or self.scheduler.running or self.scheduler.waiting)
                return advanced + self.replicas.advance(self.device.clock, block=idle)
            except RankError as error:
                self.replicas.end(str(error))
                return self._fail_all(error)

    def _fail_all(self, error: RankError) -> list[Sequence]:
        """Nobody answers any more: end every request that is not finished."""
        assert self.replicas is not None
        elsewhere = [given.sequence for replica in self.replicas.all for given in replica.given.values()]
        failed = [*self.inbox, *self.scheduler.running, *self.scheduler.waiting, *elsewhere]
        self.inbox.clear()
        for replica in self.replicas.all:
            replica.given.clear()
        for sequence in failed:
            sequence.error = error
            sequence.finish(FinishReason.ABORT, self.device.clock())
            self.release(sequence)
        return failed

    def abort(self, request_id: int) -> bool:
        """As before, wherever the request is."""
        if self.replicas is not None and not self.in_step:
            with self.stepping, suppress(RankError):  # the next step tells
                self.dispatch()
                found = [one for one in self.inbox if one.id == request_id]
                found += [one for replica in self.replicas.all if (one := replica.take_back(request_id))]
                for sequence in found:
                    if sequence in self.inbox:
                        self.inbox.remove(sequence)
                    sequence.finish(FinishReason.ABORT, self.device.clock())
                    return True
        return super().abort(request_id)

    def debug_state(self) -> dict[str, Any]:
        """As before, of this process; `replicas` has the same of the others, at the ends of their steps."""
        state = super().debug_state()
        if self.replicas is not None:
            state["replicas"] = [replica.ask(state_of) for replica in self.replicas.all]
        return state

    def kv_usage(self) -> Any:
        """As before, of all together."""
        usage = super().kv_usage()
        if self.replicas is None:
            return usage
        each = [usage, *(replica.ask(usage_of) for replica in self.replicas.all)]
        return usage._replace(**{name: sum(getattr(one, name) for one in each) for name in usage._fields})


# ==== phase10/shard.py ==============================================================================================
# Shard: one rank's part of a model, built on its device from its slices of the files alone.


def build_shard(checkpoint: Checkpoint, plan: ShardPlan, ranks: Ranks, dtype: torch.dtype, home: Home) -> Any:
    """This rank's module; `bytes_read` of it says what it took of the files. Raises `CheckpointError`."""
    whole, model = skeleton(checkpoint), cast(Any, hollow(plan.config))
    exchange(model, plan, ranks)
    if checkpoint.config.quantization is not None:
        exchange_hollow(whole, checkpoint.config.quantization)
        exchange_quantized(model, checkpoint.config.quantization)
    sources = checkpoint.plan(whole)
    model.bytes_read = 0
    for name, _ in list(model.named_parameters()):
        if is_empty(model, name):
            set_parameter(model, name, torch.empty(0, plan.config.hidden_size, dtype=dtype, device=home(name)))
            continue
        in_whole = plan.name_in_whole(name)
        source, part = sources[in_whole], plan.part(in_whole)
        as_stored = name.rpartition(".")[2] in PARTS
        set_parameter(model, name, read_part(source, part, source.dtype if as_stored else dtype, home(name)))
        model.bytes_read += part_bytes(source, part)
        ranks.say("read")
    model.tie()
    model.make_tables()
    return model


def exchange(model: Any, plan: ShardPlan, ranks: Ranks) -> None:
    """Put the parallel layers into a hollow model of the shard's config."""
    names, place, width = GPT_2 if isinstance(model, GPT2) else LLAMA, plan.place, plan.config.hidden_size
    with torch.device("meta"):
        if place.parts > 1:
            for block in getattr(model, names.blocks):
                for path in names.row_parallel:
                    owner, _, leaf = path.partition(".")
                    setattr(getattr(block, owner), leaf, RowParallel(block.get_submodule(path), ranks.tensor))
            first, tokens = place.part * plan.rows, plan.config.vocab_size
            setattr(model, names.embedding, VocabularyEmbedding(plan.rows, width, first, ranks.tensor))
            model.lm_head = VocabularyHead(plan.rows, width, tokens, ranks.tensor)
        if not place.is_first:
            setattr(model, names.embedding, FromPreviousStage(width, ranks.world, place.rank - place.parts))
            if isinstance(model, GPT2):
                model.wpe = NoPositions()  # type: ignore[assignment]
        if not place.is_last:
            setattr(model, names.norm, nn.Identity())
            model.lm_head = ToNextStage(ranks.world, place.rank + place.parts)
    model.tie()


def exchange_quantized(model: Any, stored: StoredQuantization) -> None:
    """Exchange the layers of a hollow shard that are stored quantised: linear ones, and a head that ranks share."""
    exchange_hollow(model, stored)
    head = model.lm_head
    if stored.quantize_head and isinstance(head, VocabularyHead):
        assert head.weight is not None
        rows, width = head.weight.shape
        with torch.device("meta"):
            head.quantize(QuantizedLinear(width, rows, find_scheme(stored.scheme, stored.group_size)))


def is_empty(model: nn.Module, name: str) -> bool:
    """Whether the parameter has no rows here: the embedding, on any stage but the first."""
    return isinstance(model.get_submodule(name.rpartition(".")[0]), FromPreviousStage)


def read_part(source: TensorSource, part: Part, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A part of one stored parameter; of a file only the pages of the part are touched."""
    raise NotImplementedError("P10 task 4: read_part")


def fill(made: Tensor, values: Tensor, part: Part) -> None:
    """Copy the ranges of `values`, one behind the other, to the beginning of `made`."""
    raise NotImplementedError("P10 task 4: fill")


# ==== phase10/engine.py =============================================================================================
# Phase 10's change: `build_model` takes this rank's shard only, `forward` is one of all ranks together.


class Engine(ReplicatedEngine):
    """A model that is dealt to several ranks. This process is rank 0: it alone schedules and samples."""

    Options = ParallelOptions
    options: ParallelOptions
    Plan: type[ShardPlan] = ShardPlan

    @classmethod
    def load(cls, model: str = "tiny", **options: Any) -> "Engine":
        """As before; with several ranks, the others are started too, and end with the engine.

        Under torchrun every rank calls this; only on rank 0 does it return, the others serve until rank 0 has ended,
        and leave by `SystemExit`. Raises `RankError` if another rank fails.
        """
        checked = make_options(cls.Options, options)
        if checked.replicas > 1:
            return cls.load_replicas(model, options, checked)
        if checked.world == 1:
            return super().load(model, **options)  # type: ignore[return-value]
        ranks = checked.ranks if isinstance(checked.ranks, Ranks) else None
        if ranks is None:
            config = open_model(model)[0].config
            for rank in range(checked.world):  # what cannot be dealt out is refused before anything is started
                cls.Plan(config, Place.of(rank, checked.tensor_parallel, checked.pipeline_parallel))
            ranks = launcher_of(checked.ranks).launch(cls, model, options, checked)
        with ranks.step():
            engine: Engine = super().load(model, **{**options, "device": ranks.device, "ranks": ranks})  # type: ignore[assignment]
        if not ranks.decides and checked.ranks is not ranks:
            engine.serve()
            raise SystemExit(0)
        return engine

    @classmethod
    def load_replicas(cls, model: str, options: dict[str, Any], checked: ParallelOptions) -> "Engine":
        """The engine of this process, to which the others belong; they end with it."""
        replicas = Replicas.start(cls, model, options, checked)
        with replicas.loading():
            engine = cls.load(model, **cls.Options.of_replica(options, checked, 0))
        engine.replicas = replicas
        weakref.finalize(engine, replicas.end)
        return engine

    @classmethod
    def build_model(cls, checkpoint: Checkpoint, options: EngineOptions) -> nn.Module:
        """Checkpoint -> this rank's shard of the module on its device."""
        ranks = getattr(options, "ranks", None)
        if not isinstance(ranks, Ranks):
            return super().build_model(checkpoint, options)
        device = Device.get(options.device)
        dtype, _ = device.dtype(options.dtype, checkpoint.dtype)
        plan = ranks.plan = cls.Plan(checkpoint.config, ranks.place)
        model = build_shard(checkpoint, plan, ranks, dtype, lambda name: cls.home(name, plan.config, options))
        asked = cast(ParallelOptions, options)
        ranks.begin(asked.max_batch, model.bytes_read)
        if asked.quantization is not None:
            scheme = find_scheme(asked.quantization, asked.group_size)
            quantize_rows_together(model, scheme, ranks.tensor)
            if asked.quantize_head:
                quantize_head(model, scheme)
        return model

    def allocate(self) -> None:
        """As before, and the same on all ranks. A stage that is not the last passes on all rows, not only `rows`."""
        options = self.options
        self.ranks = options.ranks if isinstance(options.ranks, Ranks) else None
        if self.ranks is None:
            if options.world > 1:
                raise OptionsError(
                    f"tensor_parallel = {options.tensor_parallel}, pipeline_parallel = {options.pipeline_parallel}: a "
                    "module that is made already cannot be dealt out: use Engine.load, where each rank reads its slice"
                )
            super().allocate()
            return
        weakref.finalize(self, self.ranks.close)
        if not self.ranks.place.is_last:
            self.model.register_forward_pre_hook(lambda _, inputs: inputs[:3])
        with self.ranks.equal_memory():
            super().allocate()

    def warmup(self) -> None:
        """As before, each rank by itself: none waits for another one's compiler."""
        with self.ranks.alone() if self.ranks else nullcontext():
            super().warmup()

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows, on rank 0."""
        raise NotImplementedError("P10 task 5: Engine.forward")

    # ---- beyond the hooks ----------------------------------------------------------------------------------------

    @torch.inference_mode()
    def serve(self) -> None:
        """On a rank that is not the first: compute the steps that rank 0 announces, until it says that it is done."""
        assert self.ranks is not None
        while (message := self.ranks.next_step(self.device.torch_device)).kind is not Kind.END:
            self.forward(message.batch(self.whole([], []).attention, self.cache))
        self.close()

    def close(self) -> None:
        """End the other ranks and replicas; also done when the engine is collected, or the process ends."""
        if self.replicas is not None:
            self.replicas.end()
        if self.ranks is not None:
            self.ranks.close()
