"""Random traces on phase 9: steps are launched before it is known who ends in the one before."""

from hypothesis import event, given, settings

from minfer.course.machines.simulated import SimulatedDevice
from minfer.phase9 import Engine
from tests.traces.test_traces import same_every_time
from tests.traces.trace import Trace, follow, traces


@settings(same_every_time, max_examples=20)
@given(trace=traces)
def test_every_answer_is_the_one_alone_whatever_overlaps(lab, trace):
    options = {**trace.options, "device": SimulatedDevice(), "graph_batch": min(4, trace.options["max_batch"])}
    state = follow(lab, Trace(trace.family, options, trace.events), Engine)
    event("somebody gave way" if state["preemptions"] else "nobody gave way")
    event("something was shared" if state["shared_tokens"] else "nothing was shared")
