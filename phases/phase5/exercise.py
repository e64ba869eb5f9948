"""Phase 5, Continuous batching: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 15 points. Whose block is it: BlockAllocator.allocate, BlockAllocator.release, BlockAllocator.share,
    BlockAllocator.publish
Task 2, 21 points. Pages instead of rows: Span.slots, PagedKVCache.decode_masks, PagedAttention.__call__,
    PagedAttention.gather
Task 3, 38 points. Who advances: Scheduler.schedule, Scheduler._grow, Scheduler._start, Scheduler._shared_prefix
Task 4, 11 points. One flat batch: Engine.prepare
Task 5, 15 points. Come and go: Engine.submit, Engine.run, Engine.release

Copy it (`minfer start 5`), write, then look what is right: `minfer check 5`, or
`pytest tests/phase5 --engine work/phase5.py`. Hints: `minfer hint 5 1`.
It builds on the reference of phase 4; to build on your own, import that instead.
"""

import hashlib
import itertools
import threading
import warnings
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minfer.core.attention import Attention, Visible, attend, causal_mask
from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.errors import MinferWarning, OptionsError, RequestError
from minfer.core.options import at_least, option
from minfer.core.prompts import Params, Prompt, Prompts
from minfer.core.sequence import FinishReason, Sequence, Status
from minfer.core.upload import upload
from minfer.phase4 import BatchOptions, KVUsage
from minfer.phase4 import Engine as Phase4Engine

# ==== phase5/block_allocator.py =====================================================================================
# BlockAllocator: which blocks of the pool are whose, by reference counts; and which of them hold a known prefix.


@dataclass(frozen=True)
class Content:
    """What a full block holds: its tokens, and the digest of them and of all that precedes them."""

    digest: bytes
    tokens: tuple[int, ...]


class BlockAllocator:
    """Hands out block ids 0 … num_blocks-1.

    Invariants: a block is free exactly when its reference count is 0; free + used == num_blocks. A free block keeps its
    content and can be taken back by `share` until `allocate` needs it; the longest free goes first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._content: dict[int, Content] = {}
        self._by_digest: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def cached(self) -> list[int]:
        """Free blocks whose content can still be shared."""
        return [block for block in self._free if block in self._content]

    def allocate(self) -> int:
        """A block of one's own, whose old content is forgotten. The caller has seen that `num_free` is not 0."""
        raise NotImplementedError("P5 task 1: BlockAllocator.allocate")

    def release(self, block: int) -> None:
        """Give up one reference; with the last one the block is free. Raises `RuntimeError` on a double free."""
        raise NotImplementedError("P5 task 1: BlockAllocator.release")

    def share(self, content: Content) -> int | None:
        """One more reference to the block that holds just this content; None if there is none."""
        raise NotImplementedError("P5 task 1: BlockAllocator.share")

    def publish(self, block: int, content: Content) -> None:
        """Let others share a full block, which from now on is never written. The first to publish a content wins."""
        raise NotImplementedError("P5 task 1: BlockAllocator.publish")

    def forget(self, block: int) -> None:
        """The block's content is gone, or was never written."""
        content = self._content.pop(block, None)
        if content is not None:
            del self._by_digest[content.digest]


def chain(parent: bytes, tokens: Items[int]) -> Content:
    """The content of a full block after `parent`, the digest of the block before (b"" for the first).

    A digest covers every token up to the block's end, since keys and values depend on all of them; it is SHA-256 at its
    full width, and `share` compares the tokens besides.
    """
    return Content(hashlib.sha256(parent + array("q", tokens).tobytes()).digest(), tuple(tokens))


# ==== phase5/options.py =============================================================================================
# Phase 5's options: the pool, and how much a step may do.


@dataclass(frozen=True)
class PagedOptions(BatchOptions):
    """Phase 5's options."""

    block_size: int = option(16, "tokens in a block of the KV cache")
    num_blocks: int | None = option(None, "blocks in the pool; default: see memory_share")
    memory_share: float = option(0.5, "most of the free memory that the pool may take, unless num_blocks is given")
    token_budget: int = option(512, "most tokens in one step, decodes and prompt chunks together")
    chunk_size: int | None = option(None, "most tokens of one prompt in one step; default: the token budget")
    share_prefixes: bool = option(True, "whether requests that begin alike share the blocks of that beginning")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "block_size", 1)
        at_least(self, "token_budget", 1)
        if self.token_budget < self.max_batch:
            raise OptionsError(
                f"token_budget = {self.token_budget} is below max_batch = {self.max_batch}: every running request "
                "needs its token in each step"
            )
        for name in ("num_blocks", "chunk_size"):
            if getattr(self, name) is not None:
                at_least(self, name, 1)
        if not 0 < self.memory_share <= 1:
            raise OptionsError(f"memory_share = {self.memory_share}: give a number above 0 and at most 1")


# ==== phase5/paged_kv_cache.py ======================================================================================
# PagedKVCache: keys and values of all requests in one pool of blocks per layer, found through block tables.
#
# Slot s of the pool is token s % block_size of block s // block_size. Writes go by `slots`, reads by `tables`.


@dataclass(frozen=True)
class Span:
    """The tokens of one sequence that a step computes: `count` of them, from position `start` on."""

    start: int
    count: int
    table: list[int]  # block ids of the sequence's first start + count tokens

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.start + self.count

    def slots(self, block_size: int) -> list[int]:
        """Where the pool takes the tokens."""
        raise NotImplementedError("P5 task 2: Span.slots")


@dataclass
class Segment:
    """A prompt, or a chunk of one, in the flat batch."""

    rows: slice  # of the flat batch
    table: Tensor | None  # int64 (blocks,): what is visible; None: only what the segment itself brings
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)  # by window, (T, S)


@dataclass
class PagedStep:
    """What one step needs of the pool; made once, read by every layer. The decode rows come first."""

    slots: Tensor  # int64 (N,): where each token's key and value are stored
    tables: Tensor  # int64 (decodes, blocks): block ids, filled up with the scratch block
    masks: dict[int | None, Tensor]  # by window, bool (decodes, 1, 1, blocks * block_size)
    segments: list[Segment]

    @cached_property
    def context(self) -> Tensor:
        """int64 (decodes, blocks * block_size): the slots of each table's blocks, end to end."""
        decodes, blocks = self.tables.shape
        size = next(iter(self.masks.values())).shape[-1] // blocks
        within = torch.arange(size, device=self.tables.device)
        return (self.tables.unsqueeze(-1) * size + within).view(decodes, -1)


class PagedKVCache:
    """A pool of `num_blocks` blocks, and one scratch block behind them that takes what must go nowhere.

    Invariant: a block is zero when it is handed out, because 0 · NaN is NaN: what a mask hides must still be finite.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.num_blocks, self.block_size = config, num_blocks, block_size
        self.scratch = num_blocks
        shape = (2, config.num_layers, num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
        self.pool = torch.zeros(shape, dtype=dtype, device=device)
        keys, values = self.pool
        cache = weakref.proxy(self)  # no cycle: the pool is freed with the engine, not when a collector runs
        self.layers = [PagedAttention(cache, keys[i], values[i], window) for i, window in enumerate(config.windows)]
        self.tables: dict[int, list[int]] = {}  # of each running request its blocks: the scheduler's own
        self.step: PagedStep

    @staticmethod
    def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers."""
        return block_size * config.kv_numbers_per_token * dtype.itemsize

    def usage(self, owners: list[Sequence]) -> KVUsage:
        """How much of the blocks that `owners` hold is filled; shared blocks count once.

        Paging wastes only the empty slots of each request's last block. May be called while another thread steps.
        """
        filled: dict[int, int] = {}
        for sequence in list(owners):
            for index, block in enumerate(list(self.tables.get(sequence.id, ()))):
                filled[block] = max(0, min(self.block_size, sequence.num_cached - index * self.block_size))
        return KVUsage(sum(filled.values()), len(filled) * self.block_size)

    def zero(self, blocks: list[int]) -> None:
        """Empty these blocks, which are about to be filled anew: what a failed step left there may be NaN."""
        if blocks:
            self.pool.index_fill_(2, upload(blocks, self.pool.device), 0)

    def begin(self, spans: list[Span], positions: Tensor, slots: Tensor) -> list[Attention]:
        """Start a step that brings `spans`, those of one token first; `positions`, `slots` int64 `(N,)` of all tokens.

        Tables and masks of the step are made here, once for all layers. Returns one attention per layer.
        """
        decodes = [span for span in spans if span.count == 1]
        assert all(span.count > 1 for span in spans[len(decodes) :]), "spans of one token come first"
        width = max((len(span.table) for span in decodes), default=0)
        tables = [span.table + [self.scratch] * (width - len(span.table)) for span in decodes]
        segments: list[Segment] = []
        first = len(decodes)
        for span in spans[len(decodes) :]:
            rows = slice(first, first + span.count)
            table = upload(span.table, slots.device) if span.start else None
            segments.append(self.segment(rows, positions[rows], table))
            first = rows.stop
        masks = self.decode_masks(positions[: len(decodes)], width * self.block_size) if decodes else {}
        self.step = PagedStep(slots, upload(tables, slots.device), masks, segments)
        return list(self.layers)

    def decode_masks(self, positions: Tensor, width: int) -> dict[int | None, Tensor]:
        """By window, which of `width` gathered slots each decode row at `positions` `(B,)` sees: `(B, 1, 1, width)`."""
        raise NotImplementedError("P5 task 2: PagedKVCache.decode_masks")

    def segment(self, rows: slice, positions: Tensor, table: Tensor | None) -> Segment:
        """A chunk at `positions` `(T,)`, whose sequence's blocks are `table`; None if it starts its sequence."""
        held = positions if table is None else torch.arange(len(table) * self.block_size, device=positions.device)
        masks = {
            window: None
            if table is None and (window is None or len(positions) <= window)
            else causal_mask(positions, held, window)
            for window in set(self.config.windows)
        }
        return Segment(rows, table, masks)


class PagedAttention:
    """One layer of a `PagedKVCache`."""

    def __init__(self, cache: PagedKVCache, keys: Tensor, values: Tensor, window: int | None) -> None:
        self.cache, self.window = cache, window
        self.keys, self.values = keys, values  # (num_blocks + 1, block_size, n_kv_heads, head_dim)
        self.slots = keys.flatten(0, 1).flatten(1), values.flatten(0, 1).flatten(1)  # (slots, n_kv_heads * head_dim)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the step's keys and values, then attend: first the decode rows together, then each segment.

        q `(N, n_heads, head_dim)`, k and v `(N, n_kv_heads, head_dim)`. All is stored before anything is read, so a
        request may share a block that another fills in this very step.
        """
        raise NotImplementedError("P5 task 2: PagedAttention.__call__")

    def decode_inputs(self) -> list[Tensor]:
        """A decode step's tensors, for a later phase that stores and attends by itself instead of calling this layer.

        Keys and values of the pool `(slots, n_kv_heads * head_dim)`; the slots `(B,)` to write; the slots to read and
        their mask, both `(B, blocks * block_size)`.
        """
        step = self.cache.step
        return [*self.slots, step.slots, step.context, step.masks[self.window].flatten(1)]

    def decode(self, q: Tensor, step: PagedStep) -> Tensor:
        """One query per request: q `(B, n_heads, head_dim)` over the blocks of its table, gathered."""
        keys, values = self.gather(step.tables)
        return attend(q.unsqueeze(1), Visible(keys, values, step.masks[self.window])).squeeze(1)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
        """A segment's queries `(T, n_heads, head_dim)` over its own keys, or over its blocks if some came earlier."""
        mask = segment.masks[self.window]
        if segment.table is None:
            return attend(q, Visible(k, v, mask, is_causal=mask is None))
        return attend(q, Visible(*self.gather(segment.table), mask))

    def gather(self, tables: Tensor) -> tuple[Tensor, Tensor]:
        """The blocks of `tables` `(*, blocks)` end to end: keys, values `(*, blocks * block_size, n_kv_heads, D)`."""
        raise NotImplementedError("P5 task 2: PagedAttention.gather")


# ==== phase5/scheduler.py ===========================================================================================
# Scheduler: which requests advance in the next step, by how many tokens, and whose memory that takes.
#
# Policy: first come, first served. Running requests come before waiting ones; of the running, each gets one token, or a
# chunk of what it has yet to compute, within the token budget. When blocks run out, the request that came last gives
# its blocks back and computes again later (preemption by recompute). So the oldest request always advances, and no
# trace can spin.


@dataclass(frozen=True)
class Limits:
    """How much one step may do."""

    block_size: int
    max_batch: int
    token_budget: int  # tokens of one step; at least max_batch, so that every running request gets its one
    chunk_size: int  # tokens of one request in one step
    share_prefixes: bool


class Scheduler:
    """Owns the queues and the block tables.

    Invariants: `running` then `waiting` is in order of arrival, unless suspects are run alone after a failure; a
    sequence has a table exactly while it runs; its table has the blocks of its first `num_cached + num_scheduled`
    tokens. Of a sequence at most one token is pending when it is scheduled.
    """

    def __init__(self, allocator: BlockAllocator, limits: Limits) -> None:
        self.allocator, self.limits, self.block_size = allocator, limits, limits.block_size
        self.most = limits  # what `restrict` cannot exceed
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.tables: dict[int, list[int]] = {}
        self.contents: dict[int, list[Content]] = {}  # of each known sequence's full blocks
        self.suspects: list[Sequence] = []
        self.in_order = True
        self.fresh: list[int] = []  # blocks handed out since the last step, with whatever their last owner left there
        self.arrivals: dict[int, int] = {}  # of each known sequence, which it was
        self._counter = itertools.count()
        self.preemptions = 0
        self.shared_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Put a request at the end of the queue."""
        self.arrivals[sequence.id] = next(self._counter)
        self.waiting.append(sequence)

    def schedule(self) -> list[Sequence]:
        """The next step's sequences, each with `num_scheduled` set and its blocks in place."""
        raise NotImplementedError("P5 task 3: Scheduler.schedule")

    def restrict(self, max_batch: int, prompt_tokens: int) -> None:
        """From the next step on start no request beside `max_batch` others or more; whoever runs goes on.

        A step computes at most `prompt_tokens` tokens of prompts beside the tokens of those that decode. Both are at
        least 1; neither exceeds what the scheduler was made for. Nobody's tokens depend on it.
        """
        rows = min(max_batch, self.most.max_batch)
        budget = min(max(rows, len(self.running)) + prompt_tokens, self.most.token_budget)
        self.limits = replace(self.most, max_batch=rows, token_budget=budget)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is, and free its blocks; harmless if it is not known."""
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        self._free(sequence)
        self.acquit(sequence)
        self.contents.pop(sequence.id, None)
        self.arrivals.pop(sequence.id, None)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it goes back to the head of the queue, keeps its tokens, computes again."""
        self._send_back(sequence)
        self.preemptions += 1

    def roll_back(self, scheduled: list[Sequence]) -> None:
        """A step has failed: nothing that it wrote may be believed, and each of its requests is run alone next.

        Who had its last token by then is done, and leaves.
        """
        for sequence in scheduled:
            for block in self.tables.get(sequence.id, ()):
                self.allocator.forget(block)
            if sequence.finished:
                self.release(sequence)
        self._send_all_back()
        self.suspects = [sequence for sequence in scheduled if not sequence.finished]

    def acquit(self, sequence: Sequence) -> None:
        """A suspect has drawn a token alone, or is gone."""
        if sequence in self.suspects:
            self.suspects.remove(sequence)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def _isolate(self, sequence: Sequence) -> list[Sequence]:
        """Only `sequence`, with the pool to itself, so that a failure names its culprit."""
        if self.running != [sequence]:
            self._send_all_back()
            self.waiting.remove(sequence)
            self.waiting.appendleft(sequence)
            self._start(sequence, self.limits.token_budget)
        else:
            self._grow(sequence, self.limits.token_budget)
        return [sequence]

    def _restore_order(self) -> None:
        """After suspects were run alone: all wait again, in the order in which they came."""
        self._send_all_back()
        self.waiting = deque(sorted(self.waiting, key=lambda sequence: self.arrivals[sequence.id]))
        self.in_order = True

    def _send_all_back(self) -> None:
        for sequence in reversed(self.running[:]):
            self._send_back(sequence)

    def _send_back(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        sequence.status = Status.WAITING
        sequence.num_cached = sequence.num_scheduled = 0
        self.waiting.appendleft(sequence)

    def _grow(self, sequence: Sequence, budget: int) -> bool:
        """Schedule a running sequence; preempt those that came later until it has its blocks. False: it had to go."""
        raise NotImplementedError("P5 task 3: Scheduler._grow")

    def _start(self, sequence: Sequence, budget: int) -> bool:
        """Admit the head of the queue if there are blocks for all that it has to compute."""
        raise NotImplementedError("P5 task 3: Scheduler._start")

    def _shared_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the sequence's first tokens already; never all of them: one token at least is computed."""
        raise NotImplementedError("P5 task 3: Scheduler._shared_prefix")

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        return min(sequence.num_tokens - sequence.num_cached, self.limits.chunk_size, budget)

    def _schedule(self, sequence: Sequence, count: int) -> None:
        """Note the step's tokens, and publish the blocks that it fills: all layers store before they read.

        A block with a pending token is published one step later, when it is known what the block holds.
        """
        sequence.num_scheduled = count
        if self.limits.share_prefixes:
            known = min(sequence.num_cached + count, len(sequence.token_ids))
            first, full = max(0, sequence.num_cached - 1) // self.block_size, known // self.block_size
            table, contents = self.tables[sequence.id], self._contents(sequence, full)
            for index in range(first, full):
                self.allocator.publish(table[index], contents[index])

    def _contents(self, sequence: Sequence, full: int) -> list[Content]:
        """What the sequence's first `full` blocks hold."""
        contents = self.contents.setdefault(sequence.id, [])
        while len(contents) < full:
            start = len(contents) * self.block_size
            tokens = sequence.token_ids[start : start + self.block_size]
            contents.append(chain(contents[-1].digest if contents else b"", tokens))
        return contents[:full]

    def _allocate(self, count: int) -> list[int]:
        blocks = [self.allocator.allocate() for _ in range(count)]
        self.fresh += blocks
        return blocks

    def _free(self, sequence: Sequence) -> None:
        for block in reversed(self.tables.pop(sequence.id, [])):  # the end of a prefix is forgotten before its start
            self.allocator.release(block)


# ==== phase5/state.py ===============================================================================================
# The scheduler's state as plain values, for tests, pictures and a server's `/slots`; and what fragmentation costs.


def debug_state(scheduler: Scheduler, usage: KVUsage, scheduled: list[tuple[Sequence, int]]) -> dict[str, Any]:
    """A JSON-able copy: blocks, who holds them, queues by request id, and the rows of the last step."""
    allocator = scheduler.allocator
    return {
        "num_blocks": allocator.num_blocks,
        "block_size": scheduler.block_size,
        "free": allocator.num_free,
        "used": allocator.num_blocks - allocator.num_free,
        "cached_blocks": allocator.cached,
        "references": list(allocator.references),
        "tables": {request_id: list(table) for request_id, table in scheduler.tables.items()},
        "num_cached": {sequence.id: sequence.num_cached for sequence in scheduler.running},
        "running": [sequence.id for sequence in scheduler.running],
        "waiting": [sequence.id for sequence in scheduler.waiting],
        "step": [{"id": s.id, "tokens": count, "kind": _kind(s, count)} for s, count in scheduled],
        "preemptions": scheduler.preemptions,
        "shared_tokens": scheduler.shared_tokens,
        "kv": _usage(usage),
        "kv_if_contiguous": _usage(contiguous_usage(scheduler)),
    }


def _kind(sequence: Sequence, count: int) -> str:
    """What the last step did for a request: part of its prompt, one new token, or again what a preemption lost."""
    if sequence.num_cached <= sequence.num_prompt:
        return "prefill"
    return "decode" if count == 1 else "recompute"


def _usage(usage: KVUsage) -> dict[str, float]:
    return {"held": usage.held, "allocated": usage.allocated, "unused": usage.unused}


def contiguous_usage(scheduler: Scheduler) -> KVUsage:
    """As if in a contiguous cache, which reserves for each running request the longest that it could become."""
    return KVUsage.of(scheduler.running, sum(sequence.max_length for sequence in scheduler.running))


# ==== phase5/step.py ================================================================================================
# Step: one turn of the scheduler's requests, from its launch until what it has drawn is taken in.


@dataclass
class Step:
    """Who is computed, and whose tokens are drawn; those are known when the step has landed."""

    scheduled: list[Sequence]
    drawing: list[Sequence] = field(default_factory=list)
    token_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # int64 (drawing,)
    error: Exception | None = None
    """What went wrong; nothing that the step did may be believed then."""


# ==== phase5/engine.py ==============================================================================================
# Phase 5's change: `run` hands the order of work to a scheduler, `prepare` makes one flat, ragged batch of it.


class Engine(Phase4Engine):
    """Requests join and leave at any step, from any thread; their keys and values live in pages."""

    Options = PagedOptions
    options: PagedOptions

    step_type: type[Step] = Step

    def allocate(self) -> None:
        """The pool, the queues, and a lock: one step at a time, whoever calls it."""
        options = self.options
        blocks = options.num_blocks or self.blocks_that_fit()
        needed = (blocks + 1) * PagedKVCache.block_bytes(self.config, options.block_size, self.dtype)
        if needed > self.device.free_memory():
            raise OptionsError(
                f"a pool of {blocks} blocks of {options.block_size} tokens takes {needed:,} bytes, "
                f"{self.device.free_memory():,} are free: lower num_blocks or block_size"
            )
        self.cache = PagedKVCache(self.config, blocks, options.block_size, self.dtype, self.device.torch_device)
        chunk = options.chunk_size or options.token_budget
        limits = Limits(options.block_size, options.max_batch, options.token_budget, chunk, options.share_prefixes)
        self.scheduler = Scheduler(BlockAllocator(blocks), limits)
        self.owners, self.cache.tables = self.scheduler.running, self.scheduler.tables  # who holds what, for `kv_usage`
        self.inbox: deque[Sequence] = deque()
        self.launched: deque[Step] = deque()  # whose tokens have not been taken in
        self.scheduled: list[Sequence] = []  # in the step that was launched last, and how many tokens of each
        self.counts: list[int] = []
        self.stepping = threading.RLock()
        self.in_step = False
        self.leaving: deque[int] = deque()  # ids of requests to take back when the step has ended

    def blocks_that_fit(self) -> int:
        """Blocks for `max_batch` requests of 2048 tokens and for one of the whole context, if memory allows."""
        size = self.options.block_size
        tokens = max(self.context, self.options.max_batch * min(self.context, 2048))
        room = int(self.device.free_memory() * self.options.memory_share)
        fitting = room // PagedKVCache.block_bytes(self.config, size, self.dtype)
        return max(1, min(-(-tokens // size), fitting))

    # ---- requests come and go ------------------------------------------------------------------------------------

    def sequences(self, prompts: Prompts, params: Params = None) -> list[Sequence]:
        """As before; a request that could never fit the pool is refused here."""
        made = super().sequences(prompts, params)
        for sequence in made:
            needed = self.scheduler.blocks_for(sequence.max_length - 1)  # the last token is never fed
            if needed > self.cache.num_blocks and not sequence.finished:
                raise RequestError(
                    f"prompt of {sequence.num_prompt} and answer of up to {sequence.max_length - sequence.num_prompt} "
                    f"tokens need {needed} blocks, the pool has {self.cache.num_blocks}: lower max_tokens, or load "
                    f"with num_blocks={needed}"
                )
        return made

    def submit(self, prompt: Prompt, params: Params = None) -> Sequence:
        """Queue one request and return at once; from any thread. It advances with each `step`."""
        raise NotImplementedError("P5 task 5: Engine.submit")

    def enqueue(self, sequences: list[Sequence]) -> None:
        """Queue what `sequences` made; from the thread that steps. One of no tokens (max_tokens = 0) is done here."""
        for sequence in sequences:
            self._queue(sequence)

    def abort(self, request_id: int) -> bool:
        """Take a request back, whatever its state; from any thread, between steps. False: not known, or finished."""
        with self.stepping:
            if self.in_step:  # the garbage collector may close a stream in the middle of a step
                self.leaving.append(request_id)
                return True
            self.dispatch()
            for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
                if sequence.id == request_id:
                    sequence.finish(FinishReason.ABORT, self.device.clock())
                    self.release(sequence)
                    return True
        return False

    def release(self, sequence: Sequence) -> None:
        """Free the sequence's blocks and its place in the queues."""
        raise NotImplementedError("P5 task 5: Engine.release")

    # ---- the order of work ---------------------------------------------------------------------------------------

    def run(self, sequences: list[Sequence]) -> Iterator[list[Sequence]]:
        """Step until these are finished; others that were submitted advance too."""
        raise NotImplementedError("P5 task 5: Engine.run")

    def step(self) -> list[Sequence]:
        """Schedule, execute. Returns the sequences that got a token or failed; none if there was nothing to do.

        A step that raises is undone and its requests are run one by one, so that only the culprit fails: it ends with
        `abort` and its `error`.
        """
        with self.stepping:
            self.in_step = True
            try:
                return self.advance()
            finally:
                self.in_step = False
                while self.leaving:
                    self.abort(self.leaving.popleft())

    def advance(self) -> list[Sequence]:
        """What a step does, a hook of later phases: launch, if there is anything to do, and land."""
        self.launch_next()
        return self.land() if self.launched else []

    def dispatch(self) -> None:
        """Hand on what was submitted, a hook of later phases: all of it to the scheduler."""
        while self.inbox:
            self.scheduler.add(self.inbox.popleft())

    def launch_next(self) -> None:
        """Schedule a step and give it to the device, if anybody can advance; what goes wrong is told when it lands."""
        self.dispatch()
        step = self.step_type(self.scheduler.schedule())
        if not step.scheduled:
            return
        self.scheduled = step.scheduled
        self.counts = [sequence.num_scheduled for sequence in step.scheduled]
        self.launched.append(step)
        try:
            self.cache.zero(self.scheduler.fresh)
            self.scheduler.fresh.clear()
            for sequence in step.scheduled:
                if sequence.timestamps.scheduled is None:  # else it was preempted and comes back
                    self.start(sequence)
            step.drawing, step.token_ids = self.launch(step.scheduled)
        except Exception as error:
            step.error = error
        except BaseException:
            self._roll_back()
            raise

    def land(self) -> list[Sequence]:
        """Take in what the oldest launched step has drawn. Returns the sequences that got a token or failed."""
        step = self.launched[0]
        try:
            if step.error is not None:
                raise step.error
            self.commit(step.drawing, step.token_ids)
            self.launched.popleft()
            advanced = step.drawing
        except Exception as error:
            advanced = self._fail(step, error)
        except BaseException:
            self._roll_back()
            raise
        for sequence in advanced:
            self.scheduler.acquit(sequence)
        for sequence in step.scheduled:
            if sequence.finished:
                self.release(sequence)
        return advanced

    def _queue(self, sequence: Sequence) -> None:
        if sequence.finished:  # max_tokens = 0: there is nothing to schedule
            self.start(sequence)
        else:
            self.inbox.append(sequence)

    def _fail(self, step: Step, error: Exception) -> list[Sequence]:
        """A step has raised: end its request if there was only one, else find the culprit."""
        self._roll_back()
        count = len(step.scheduled)
        if count > 1:
            said = f"a step of {count} requests failed ({type(error).__name__}: {error}): each is run alone to find why"
            warnings.warn(said, MinferWarning, stacklevel=6)
        else:
            (sequence,) = step.scheduled
            sequence.error = error
            sequence.finish(FinishReason.ABORT, self.device.clock())
        return [sequence for sequence in step.scheduled if sequence.finished]

    def _roll_back(self) -> None:
        """Undo every step that was launched and has not landed."""
        sequences = list(dict.fromkeys(sequence for step in self.launched for sequence in step.scheduled))
        self.launched.clear()
        self.scheduler.roll_back(sequences)
        for sequence in sequences:
            sequence.forget_pending()
            if not sequence.output_ids:
                sequence.timestamps.scheduled = None  # it starts anew, since its prompt may not have been scored

    # ---- a step --------------------------------------------------------------------------------------------------

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """One flat batch: first the rows of single tokens, then the longer chunks, one behind the other."""
        raise NotImplementedError("P5 task 4: Engine.prepare")

    def debug_state(self) -> dict[str, Any]:
        """What the scheduler and the pool hold now, as plain JSON values; see `state.debug_state`."""
        with self.stepping:
            scheduled = list(zip(self.scheduled, self.counts, strict=True))
            return debug_state(self.scheduler, self.cache.usage(self.owners), scheduled)
