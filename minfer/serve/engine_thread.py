"""EngineThread: the one thread that touches an engine. Commands go in, deltas come out."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from minfer.core.group import RankError
from minfer.core.sequence import FinishReason
from minfer.serve.attendant import Attendant, attended, processes_of
from minfer.serve.call import Call, Delta, Seen
from minfer.serve.errors import ApiError, unavailable
from minfer.serve.mail import Mail
from minfer.serve.policy import Policy

log = logging.getLogger("minfer.serve")

FAILURES = 3
"""Steps that raise one after another before the engine counts as dead."""


class State(str, Enum):
    """Of an engine's thread."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"
    STOPPED = "stopped"

    __str__ = str.__str__


class EngineThread:
    """Loads an engine and steps it as long as there is something to do.

    Invariant: every call that `submit` took gets an end for each of its sequences, whatever happens to the engine,
    unless it was aborted: then nobody listens.
    """

    def __init__(self, load: Callable[[], Any], policy: Policy) -> None:
        self.policy = policy
        self.state = State.LOADING
        self.error: BaseException | None = None
        self.attendant: Attendant  # of the engine, when that has loaded
        self.seen: dict[int, Seen] = {}  # by sequence id: what is in hand
        self.failures = 0
        self.beat = time.monotonic()  # when the last step, or the last wait, began
        self.ready = threading.Event()  # set when loading has ended, well or badly
        self._load = load
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._mail = Mail()
        self._lock = threading.Lock()  # between `submit` and the engine's end
        self._calls: set[Call] = set()  # that will still get deltas
        self.thread = threading.Thread(target=self._live, name="engine", daemon=True)

    # ---- from any thread -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load."""
        self.thread.start()

    @property
    def load(self) -> int:
        """Sequences in hand: how busy it is."""
        return sum(call.unfinished for call in list(self._calls))

    def healthy(self, stall_seconds: float) -> bool:
        """Whether it can serve, and, if it has anything to do, began a step less than `stall_seconds` ago."""
        return self.can_serve and (not self._calls or time.monotonic() - self.beat < stall_seconds)

    @property
    def can_serve(self) -> bool:
        """Whether the engine, its thread and the processes that it needs live; if one has gone, the next step fails."""
        alive = self.state is State.READY and self.thread.is_alive()
        return alive and not any(process.is_dead for process in processes_of(self.engine))

    def submit(self, call: Call) -> None:
        """Run a call's sequences. Raises `ApiError` (503) if the engine is not there."""
        with self._lock:
            if self.state is not State.READY:
                raise unavailable(f"the engine is {self.state}", f"engine_{self.state}")
            self._calls.add(call)
            self._commands.put(lambda: self._submit(call))

    def abort(self, call: Call) -> None:
        """Take a call back: its sequences end before the next step, and nothing more is said of them."""
        self._calls.discard(call)
        self._commands.put(lambda: self._abort(call))

    def end_all(self, reason: ApiError) -> None:
        """End every call with an error, now: a step in hand may take longer than anybody waits. In the event loop."""
        for call in list(self._calls):
            call.expire(reason)  # whoever waits for it takes it back

    async def ask(self, question: Callable[[], Any]) -> Any:
        """What `question` answers or raises, asked between two steps."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def tell(outcome: Any) -> None:
            if not answer.done():
                settle = answer.set_exception if isinstance(outcome, Exception) else answer.set_result
                settle(outcome)

        def put() -> None:
            loop.call_soon_threadsafe(tell, _outcome(question))

        self._commands.put(put)
        return await answer

    def stop(self) -> None:
        """End the thread after the step in hand, and every call with it."""
        self._commands.put(self._stop)

    # ---- the engine's own thread ---------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self.engine = self._load()
            self.attendant = attended(self.engine, self.policy)
            self.state = State.READY
            self.ready.set()
            while self.state is State.READY:
                self._obey()
                if self.seen and self.state is State.READY:
                    self._step()
        except BaseException as error:  # whatever it is: who waits must hear of it
            self.error = error
            self._die(error)
        finally:
            self.ready.set()

    def _obey(self) -> None:
        """Carry out what was asked for; wait for something if there is nothing to step."""
        while True:
            self.beat = time.monotonic()
            try:
                command = self._commands.get(block=not self.seen and self.state is State.READY)
            except queue.Empty:
                return
            command()

    def _step(self) -> None:
        try:
            self.attendant.step()
            self.failures = 0
        except Exception as error:
            self._step_failed(error)
        lost = next((seen.sequence.error for seen in self.seen.values() if _is_loss(seen.sequence.error)), None)
        self._tell()
        if not self.engine.device.works_beside_host:  # the next step and the event loop would take each other's cores
            self._mail.wait()
        if lost is not None:
            raise lost

    def _step_failed(self, error: Exception) -> None:
        """A step has raised, and not in one request's part, which the engine deals with: end all that were running."""
        self.failures += 1
        log.exception("a step has failed")
        if self.failures >= FAILURES:
            raise error
        for sequence in [*self.engine.scheduler.running, *self.engine.scheduled]:
            if not sequence.finished:
                sequence.error = error
                self.engine.abort(sequence.id)
                sequence.finish(FinishReason.ABORT, self.engine.device.clock())

    def _tell(self) -> None:
        """Hand out what is new: one call into the event loop, for all that wait in it."""
        news: dict[asyncio.AbstractEventLoop, list[tuple[Call, Delta]]] = {}
        for request_id, seen in list(self.seen.items()):
            delta = seen.news()
            if delta is not None:
                news.setdefault(seen.call.loop, []).append((seen.call, delta))
            if seen.sequence.finished:
                del self.seen[request_id]
        for loop, deltas in news.items():
            self._mail.deliver(loop, deltas)

    def _submit(self, call: Call) -> None:
        if call not in self._calls:  # taken back already
            return
        call.taken_in = True
        try:
            self.engine.enqueue(call.sequences)
        except Exception as error:  # an answer of no tokens is made here
            log.exception("a request has failed")
            for sequence in call.sequences:
                self.engine.abort(sequence.id)
                sequence.error = error
                sequence.finish(FinishReason.ABORT, self.engine.device.clock())
        self.seen.update({sequence.id: Seen(call, index) for index, sequence in enumerate(call.sequences)})
        self._tell()

    def _abort(self, call: Call) -> None:
        for sequence in call.sequences:
            if self.seen.pop(sequence.id, None) is not None:
                self.engine.abort(sequence.id)

    def _fail(self, reason: ApiError) -> None:
        """Tell every call in hand that it will not go on."""
        for seen in self.seen.values():
            self._mail.deliver(seen.call.loop, [(seen.call, seen.end(reason))])
        self.seen.clear()

    def _stop(self) -> None:
        with self._lock:
            self.state = State.STOPPED
        for request_id in self.seen:
            self.engine.abort(request_id)
        self._fail(unavailable("the server has stopped", "engine_stopped"))

    def _die(self, error: BaseException) -> None:
        """The engine is no more: end what it had in hand, and what was on its way to it."""
        log.critical("the engine has died: %s: %s", type(error).__name__, error)
        with self._lock:
            self.state = State.DEAD
        for call in list(self._calls):
            if not call.taken_in:
                self.seen.update({sequence.id: Seen(call, index) for index, sequence in enumerate(call.sequences)})
        self._fail(unavailable(f"the engine has died ({type(error).__name__}: {error})", "engine_dead"))

    def forget(self, call: Call) -> None:
        """The call has its ends, or nobody listens to it."""
        self._calls.discard(call)


def _outcome(question: Callable[[], Any]) -> Any:
    """What it returns, or the exception that it raises: who only asks ends nothing."""
    try:
        return question()
    except Exception as error:
        return error


def _is_loss(error: Exception | None) -> bool:
    """Whether a request failed because the engine has lost a rank, and with it every request to come."""
    return isinstance(error, RankError)
