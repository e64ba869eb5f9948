"""Engines that fail on purpose, and what must still be true of them afterwards.

They are written on phase 5; `phase` puts them on a later one, whose hooks theirs then run before.
"""

import importlib

from minfer.course.machines.simulated import SimulatedDevice
from minfer.phase5 import Engine
from tests.phase5.serving import Serving

MARK = 77
"""A request whose prompt begins with this token is the one to blame."""


class Failing(Engine):
    """Raises `error` in `hook` while `blames(sequences of that hook)`."""

    hook = "forward"
    error: BaseException = ArithmeticError("planted")

    def blames(self, sequences):
        return any(sequence.prompt_ids[0] == MARK for sequence in sequences)

    def at(self, hook, sequences):
        if hook == self.hook and self.blames(sequences):
            raise self.error

    def prepare(self, sequences):
        self.at("prepare", sequences)
        return super().prepare(sequences)

    def forward(self, batch):
        self.at("forward", self.scheduled)
        return super().forward(batch)

    def sample(self, logits, sequences):
        self.at("sample", sequences)
        return super().sample(logits, sequences)

    def commit(self, sequences, token_ids):
        self.at("commit", sequences)
        super().commit(sequences, token_ids)
        self.at("after commit", sequences)


class FailsInTheMiddle(Failing):
    """Takes in the tokens of the requests before the one to blame, then raises."""

    hook = "one of them"

    def commit(self, sequences, token_ids):
        for row, sequence in enumerate(sequences):
            self.at("one of them", [sequence])
            super().commit([sequence], token_ids[row : row + 1])


phase = 5
"""The phase whose engine is tried; `conftest.py` changes it."""


def of_phase(engine_cls):
    """A class of phase 5 on the engine of `phase`."""
    if phase == 5:
        return engine_cls
    base = importlib.import_module(f"minfer.phase{phase}").Engine
    return base if engine_cls is Engine else type(engine_cls.__name__, (engine_cls, base), {})


def serving(engine_cls, lab, model, **options):
    """Requests on an engine in a pool of 24 blocks of 4."""
    given = {"block_size": 4, "num_blocks": 24, **options}
    if phase == 9:  # on a card that is not there: on a CPU no step is launched ahead
        given |= {"device": SimulatedDevice(), "graph_batch": 0}
    return Serving(of_phase(engine_cls), lab, model, "hostile", engine_cls.__name__, **given)


def right_tokens(model, sequences):
    """Every request got the greedy tokens that the oracle gives, as many as it asked for."""
    for sequence in sequences:
        assert sequence.error is None
        want, _ = model.oracle.greedy(sequence.prompt_ids, sequence.params.max_tokens)
        assert sequence.output_ids == want, f"{sequence.prompt_ids} -> {sequence.output_ids}"


def works(service):
    """The engine holds nothing, and answers as if nothing had happened."""
    service.empty()
    service.sequences.clear()
    service.engine.hook = "none"
    service.engine.record.logits.clear()
    lab, model = service.lab, service.model
    service.serve([lab.prompt(model, length) for length in (9, 4, 6)], lab.params(6))
