"""Random traces on phase 8 with a simulated card: preemption, chunks and shared prefixes, replayed and not."""

from hypothesis import event, given, settings

from minfer.course.machines.simulated import SimulatedDevice
from minfer.phase8 import Engine
from tests.traces.test_traces import same_every_time
from tests.traces.trace import Trace, follow, traces


@settings(same_every_time, max_examples=40)
@given(trace=traces)
def test_every_answer_is_the_one_alone_whatever_is_replayed(lab, trace):
    device = SimulatedDevice()
    options = {**trace.options, "device": device, "graph_batch": min(4, trace.options["max_batch"])}
    state = follow(lab, Trace(trace.family, options, trace.events), Engine)
    event("somebody gave way" if state["preemptions"] else "nobody gave way")
    event("something was shared" if state["shared_tokens"] else "nothing was shared")
    event("something was replayed" if device.replays else "nothing was replayed")
