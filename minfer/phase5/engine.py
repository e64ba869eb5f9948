"""Phase 5's change: `run` hands the order of work to a scheduler, `prepare` makes one flat, ragged batch of it."""

import threading
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

from minfer.core.batch import ForwardBatch
from minfer.core.errors import MinferWarning, OptionsError, RequestError
from minfer.core.prompts import Params, Prompt, Prompts
from minfer.core.sequence import FinishReason, Sequence
from minfer.core.upload import upload
from minfer.phase4 import Engine as Phase4Engine
from minfer.phase5.block_allocator import BlockAllocator
from minfer.phase5.options import PagedOptions
from minfer.phase5.paged_kv_cache import PagedKVCache, Span
from minfer.phase5.scheduler import Limits, Scheduler
from minfer.phase5.state import debug_state
from minfer.phase5.step import Step


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
        made = self.sequences([prompt], params)
        if len(made) > 1:
            raise RequestError(f"submit takes one sample, not n = {len(made)}: use generate, or submit n times")
        self._queue(made[0])
        return made[0]

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
        self.scheduler.release(sequence)

    # ---- the order of work ---------------------------------------------------------------------------------------

    def run(self, sequences: list[Sequence]) -> Iterator[list[Sequence]]:
        """Step until these are finished; others that were submitted advance too."""
        try:
            self.enqueue(sequences)
            own = {sequence.id for sequence in sequences}
            while not all(sequence.finished for sequence in sequences):
                yield [sequence for sequence in self.step() if sequence.id in own]
        finally:
            for sequence in sequences:
                self.abort(sequence.id)
        failures = [sequence.error for sequence in sequences if sequence.error is not None]
        if failures and len(failures) == len(sequences):
            raise failures[0]

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
        ordered = sorted(sequences, key=lambda sequence: sequence.num_scheduled > 1)
        flat: tuple[list[int], list[int], list[int]] = ([], [], [])  # token ids, positions, slots
        rows: list[int] = []
        drawing: list[Sequence] = []
        spans: list[Span] = []
        for sequence in ordered:
            span = Span(sequence.num_cached, sequence.num_scheduled, self.scheduler.tables[sequence.id])
            spans.append(span)
            flat[0].extend(sequence.known_ids(span.start, span.end))
            flat[1].extend(range(span.start, span.end))
            flat[2].extend(span.slots(self.cache.block_size))
            if span.end == sequence.num_tokens:  # else the prompt goes on in the next step: nothing to draw yet
                rows.append(len(flat[0]) - 1)
                drawing.append(sequence)
        device = self.device.torch_device
        input_ids, positions, slots = upload(flat, device)
        attention = self.cache.begin(spans, positions, slots)
        return ForwardBatch(input_ids, positions, attention, upload(rows, device), drawing)

    def debug_state(self) -> dict[str, Any]:
        """What the scheduler and the pool hold now, as plain JSON values; see `state.debug_state`."""
        with self.stepping:
            scheduled = list(zip(self.scheduled, self.counts, strict=True))
            return debug_state(self.scheduler, self.cache.usage(self.owners), scheduled)
