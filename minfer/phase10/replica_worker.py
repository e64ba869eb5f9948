"""What the process of a replica that is not the first runs: `run_replica`, started by `Replicas`."""

import os
from multiprocessing.connection import Connection
from typing import Any

import torch

from minfer.core.entry import find
from minfer.core.group import RankError
from minfer.core.sequence import Sequence
from minfer.phase10.job import Job
from minfer.phase10.replica_message import Advance, Take, TakeBack, Tell, Told
from minfer.phase10.worker import Voice, run


class Served:
    """An engine that answers the requests that come over a connection, and says after each step what is new."""

    def __init__(self, engine: Any, link: Connection) -> None:
        self.engine, self.link = engine, link
        self.told: dict[int, int] = {}  # id of a request -> tokens that were told of

    def serve(self) -> None:
        """Until the connection closes. With nothing to do it waits for what comes."""
        while True:
            while self.link.poll(0 if self.told else None):
                self.hear(self.link.recv())
            self.say(self.engine.step())

    def hear(self, message: Any) -> None:
        """Do what is asked."""
        if isinstance(message, Take):
            self.told[message.id] = 0
            self.engine.inbox.append(message.sequence(self.engine.tokenizer, self.engine.device.clock()))
        elif isinstance(message, TakeBack):
            self.told.pop(message.id, None)
            self.engine.abort(message.id)
        elif isinstance(message, Tell):
            self.link.send(Told(getattr(self.engine, message.method)()))

    def say(self, advanced: list[Sequence]) -> None:
        """What is new of these. Raises the error of one of this replica's own ranks: it can answer nobody any more."""
        lost = next((sequence.error for sequence in advanced if isinstance(sequence.error, RankError)), None)
        if lost is not None:
            raise lost
        new = [Advance.of(sequence, self.told[sequence.id]) for sequence in advanced if sequence.id in self.told]
        for sequence in advanced:
            if sequence.finished:
                self.told.pop(sequence.id, None)
            elif sequence.id in self.told:
                self.told[sequence.id] = len(sequence.output_ids)
        if new:
            self.link.send(new)


def work_as_replica(job: Job, voice: Voice) -> None:
    """Load the engine, with ranks of its own if asked for, and serve."""
    voice.say("started")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    engine = find(*job.engine).load(job.model, **job.options)
    voice.say("loaded")
    Served(engine, Connection(job.port)).serve()


def run_replica() -> None:
    """The whole of a replica's process."""
    run(work_as_replica)
