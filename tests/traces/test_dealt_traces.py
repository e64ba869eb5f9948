"""Random traces on phase 10: rank 0 schedules, shares and preempts; the other ranks' pools must hold the same."""

import pytest
from hypothesis import Phase, event, given, settings

from minfer.course.machines.lockstep import Lockstep
from minfer.phase10 import Engine
from tests.traces.test_traces import same_every_time
from tests.traces.trace import follow, traces


class Dealing:
    """A lab whose engines of phase 10 are dealt to ranks, all of them threads of this process."""

    def __init__(self, lab, tensor, pipeline):
        self.lab, self.engines, self.folders = lab, [], {}
        self.dealt = {"tensor_parallel": tensor, "pipeline_parallel": pipeline}

    def __getattr__(self, name):
        return getattr(self.lab, name)

    def engine(self, engine_cls, model, tokenizer=None, **options):
        """Loaded from a file, as it must be to be dealt; an engine of an earlier phase is no different here."""
        if not issubclass(engine_cls, Engine):
            return self.lab.engine(engine_cls, model, tokenizer, **options)
        if model.name not in self.folders:
            self.folders[model.name] = model.save(self.lab.new_folder())
        dealt = {**self.dealt, "ranks": Lockstep(), "graph_batch": min(2, options["max_batch"])}
        self.engines.append(self.lab.load(engine_cls, self.folders[model.name], **dealt, **options))
        return self.engines[-1]

    def close(self):
        """End all that were made since; fail if a rank of theirs did."""
        engines, self.engines = self.engines, []
        for engine in engines:
            engine.close()
        assert [engine.ranks.others.world.failure() for engine in engines] == [""] * len(engines)


@pytest.fixture(params=[(2, 1), (1, 2), (2, 2)], ids=["tensor", "pipeline", "both"])
def dealing(request, lab):
    return Dealing(lab, *request.param)


@settings(same_every_time, max_examples=10, phases=[Phase.generate])  # a smaller trace is not worth more waits of ranks
@given(trace=traces)
def test_every_answer_is_the_one_alone_on_whatever_ranks(dealing, trace):
    try:
        state = follow(dealing, trace, Engine)
    finally:
        dealing.close()
    event("somebody gave way" if state["preemptions"] else "nobody gave way")
    event("something was shared" if state["shared_tokens"] else "nothing was shared")
