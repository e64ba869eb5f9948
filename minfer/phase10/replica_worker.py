"""What the process of a replica that is not the first runs: `run_replica`, started by `Replicas`."""

import os
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from minfer.core.entry import find
from minfer.core.group import RankError
from minfer.core.sequence import Sequence
from minfer.phase10.job import Job
from minfer.phase10.replica_message import Advance, Take, TakeBack, portable
from minfer.phase10.worker import Voice, run


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
