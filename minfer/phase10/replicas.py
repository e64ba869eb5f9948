"""Replicas: further engines of the same model, each a process, that answer requests of one engine's queue.

    replica 0     the engine that was loaded, in this process: it deals requests out, and takes in what comes back
    the others    step by themselves, as long as they have requests

Each may be dealt to ranks of its own. A request goes to whoever has the fewest, when one has room.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from minfer.core.errors import OptionsError
from minfer.core.group import RankError
from minfer.core.sequence import Sequence
from minfer.phase10.job import Job
from minfer.phase10.launcher import TorchrunLauncher, launcher_of
from minfer.phase10.meeting import device_of
from minfer.phase10.processes import GRACE_SECONDS, Process
from minfer.phase10.replica_message import Take, TakeBack
from minfer.phase10.replica_worker import ReplicaWorker, run_replica

LOAD_SECONDS = 600.0
"""Within which a replica must have loaded, and compiled and recorded whatever it does."""


@dataclass(frozen=True)
class Given:
    """A request that a replica has, and when it was given, by the engine's clock."""

    sequence: Sequence
    at: float


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
        given = self.given.pop(request_id, None)
        if given is None:
            return None
        self.send(TakeBack(request_id))
        return given.sequence

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
        fewest = min(self.all, key=lambda replica: len(replica.given))
        return fewest if len(fewest.given) < own else None

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
