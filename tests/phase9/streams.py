"""Streams: requests on an engine of phase 9 with a simulated card, whose streams are as late as they may be.

What these tests ask of an engine, beside what `tests/phase5/serving.py` says:

    device.stream      a queue of work beside the model's; `with` it, `follow` a moment of another, ask for its `moment`
    device.pinned      memory of the host that is copied to and from while both go on
    step()             never waits until the card has nothing left to do, if there is anything to do
    overlap_usage()    plain JSON values:
        overlapped     steps whose tokens were read when the next had been launched
        alone          of the others how many, by reason, such as "penalties", "logprobs", "last"
    offload_layers     of the options: how many layers' weights are in pinned memory of the host

What runs beside what is seen by the card: `device.ordering.races` names every two operations that come in no order.
"""

import warnings

from minfer.core.errors import MinferWarning
from minfer.course.lab.families import family_facts
from minfer.course.lab.tiny import TinyModel
from minfer.course.machines.simulated import SimulatedDevice
from tests.phase5.serving import Serving


class StreamServing(Serving):
    """Requests served step by step on a simulated card; without graphs unless asked, since they take long to record."""

    def __init__(self, engine_cls, lab, model, code, did, hint="", **options):
        self.device = SimulatedDevice()
        given = {"block_size": 4, "num_blocks": 60, "graph_batch": 0, "device": self.device, **options}
        if given.get("offload_layers"):
            del given["graph_batch"]
        super().__init__(engine_cls, lab, model, code, did, hint, **given)
        self.may_fail = False

    def step(self, check=True):
        """One step on streams, in which nothing races; nor does it fail, unless it may."""
        __tracebackhide__ = True
        with warnings.catch_warnings(record=True) as said, self.device.watching():
            warnings.simplefilter("always", MinferWarning)
            advanced = self.engine.step()
        self.steps += 1
        self.equal(self.device.ordering.races[:1], [], f"looked for races in step {self.steps}")
        if not self.may_fail:
            self.equal([str(one.message) for one in said], [], f"looked for warnings in step {self.steps}")
        if check:
            self.check()
        return advanced

    @property
    def forwarded(self):
        """Tokens that the model has computed."""
        return sum(self.engine.record.forwarded)


def deep(lab, family="llama", layers=5):
    """A family's model with more layers."""
    facts = dict(family_facts(lab.sizes)[family])
    facts |= {name: layers for name in ("num_hidden_layers", "n_layer") if name in facts}
    if "layer_types" in facts:
        facts["layer_types"] = (facts["layer_types"] * layers)[:layers]
    return TinyModel(f"deep {family}", facts, lab.seed)


def prompts_of(lab, model, lengths):
    return [lab.prompt(model, length) for length in lengths]
