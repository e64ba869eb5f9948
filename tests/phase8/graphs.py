"""Graphs: requests on an engine of phase 8 with a simulated card, which records graphs as a card does.

What these tests ask of an engine, beside what `tests/phase5/serving.py` says:

    options            graph_batch: the most rows that are replayed; 0: no graphs
    device.graph       the only way to record a step; one replay for a step that only decodes and fits
    cache.pool         (2, layers, blocks, block_size, kv_heads, head_dim), as phase 5 has it; scratch blocks come last
    allocate()         may be called again
    graph_usage()      plain JSON values since the graphs were recorded:
        replays        steps that were replayed
        eager          of the others how many, by reason: "prefill" (with chunks of prompts), "rows" (more than any
                       graph has), whatever else
        padded_rows    the share of replayed rows that belonged to nobody
"""

import warnings

from minfer.core.errors import MinferWarning
from minfer.course.machines.simulated import SimulatedDevice
from tests.phase5.serving import Serving


class GraphServing(Serving):
    """Requests served step by step on a simulated card."""

    def __init__(self, engine_cls, lab, model, code, did, hint="", **options):
        self.device = SimulatedDevice()
        options = {"block_size": 4, "num_blocks": 60, "share_prefixes": False, "device": self.device, **options}
        super().__init__(engine_cls, lab, model, code, did, hint, **options)
        self.replayed = 0

    def step(self, check=True):
        """One step, which must not fail: an engine that runs its requests one by one then would hide it.

        How often a graph was replayed in it is then in `replayed`.
        """
        __tracebackhide__ = True
        before = self.device.replays
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", MinferWarning)
            advanced = super().step(check)
        self.equal([str(one.message) for one in said], [], f"looked for warnings in step {self.steps}")
        self.replayed = self.device.replays - before
        return advanced

    @property
    def counts(self):
        """Tokens of each request in the last step."""
        return [entry["tokens"] for entry in self.state["step"]]

    def drain_by_steps(self, look):
        """Step to the end; `look(advanced)` after each step."""
        __tracebackhide__ = True
        while self.unfinished:
            look(self.step())
        self.empty()

    def replays_decodes(self, most_rows):
        """Step to the end. Just the steps of one token for each of at most `most_rows` requests must be replayed.

        A step with a chunk of one token, of which nothing is drawn, may be replayed or not.
        """
        __tracebackhide__ = True

        def look(advanced):
            __tracebackhide__ = True
            counts = self.counts
            decodes = set(counts) == {1} and len(advanced) == len(counts)
            said = f"counted the replays of a step of {counts} tokens, {len(advanced)} of them drawn"
            if decodes or max(counts) > 1:
                self.equal(self.replayed, int(decodes and len(counts) <= most_rows), said)

        self.drain_by_steps(look)
        self.right()


def prompts_of(lab, model, lengths):
    return [lab.prompt(model, length) for length in lengths]
