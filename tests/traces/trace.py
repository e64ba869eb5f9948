"""Trace: arrivals, steps and aborts on an engine of phase 5, and what each request must have got when it is over."""

from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from minfer.core.sequence import FinishReason
from minfer.phase1 import Engine as Phase1Engine
from minfer.phase5 import Engine
from tests.phase5.serving import Serving

FAMILIES = ("llama", "mistral", "gpt2", "qwen3")
LONGEST = 30
"""Tokens that a request may need room for; no tiny model's context is shorter."""


@dataclass(frozen=True)
class Request:
    """A prompt that begins with some tokens that others begin with too, and how it is answered."""

    shared: int
    own: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool

    @property
    def prompt(self):
        return [4 + (7 * i + 3 * i * i) % 60 for i in range(self.shared)] + list(self.own)

    def params(self, lab):
        return lab.params(self.max_tokens, temperature=self.temperature, seed=self.seed, ignore_eos=self.ignore_eos)


@dataclass(frozen=True)
class Trace:
    """`events`: a request that comes, a number of steps, or a negative number: the abort of a request."""

    family: str
    options: dict
    events: tuple[Request | int, ...]


requests = st.builds(
    Request,
    shared=st.sampled_from([0, 7, 12, 16, 17]),
    own=st.lists(st.integers(0, 90), min_size=1, max_size=5).map(tuple),
    max_tokens=st.sampled_from([9, 7, 5, 1]),
    temperature=st.sampled_from([0.0, 1.3]),
    seed=st.integers(0, 3),
    ignore_eos=st.booleans(),
)


@st.composite
def options(draw):
    """Of an engine: tiny pools, but room for one request; block sizes, chunks and budgets of all kinds."""
    size, batch = draw(st.sampled_from([1, 3, 4, 16])), draw(st.sampled_from([5, 3, 1]))
    return {
        "block_size": size,
        "num_blocks": -(-LONGEST // size) + draw(st.sampled_from([0, 0, 1, 5, 30])),
        "max_batch": batch,
        "chunk_size": draw(st.sampled_from([None, 7, 2, 1])),
        "token_budget": batch + draw(st.sampled_from([60, 3, 0])),
        "share_prefixes": draw(st.sampled_from([True, True, False])),
    }


events = st.lists(st.one_of(requests, requests, st.integers(1, 6), st.integers(-4, -1)), min_size=8, max_size=24)
traces = st.builds(Trace, family=st.sampled_from(FAMILIES), options=options(), events=events.map(tuple))


@cache
def alone(lab, family, request):
    """Phase 1's tokens and reason for one request by itself."""
    engine = lab.engine(Phase1Engine, lab.model(family))
    (run,) = lab.run(engine, [request.prompt], request.params(lab))
    return run.token_ids, run.completion.finish_reason


def follow(lab, trace, engine_cls=Engine):
    """Run the trace, its books checked after each step; then all must be right, and every block free."""
    service = Serving(engine_cls, lab, lab.model(trace.family), "trace", str(trace), **trace.options)
    gone = {}
    for event in trace.events:
        if isinstance(event, Request):
            service.submit(event.prompt, event.params(lab))
        elif event > 0:
            for _ in range(event):
                service.step()
        elif len(service.sequences) >= -event:
            aborted = service.sequences[event]
            open_before = not aborted.finished
            assert service.engine.abort(aborted.id) == open_before
            if open_before:
                assert (aborted.finished, aborted.finish_reason) == (True, FinishReason.ABORT)
                gone[aborted.id] = len(aborted.output_ids)
    service.drain()
    asked = [event for event in trace.events if isinstance(event, Request)]
    for sequence, request in zip(service.sequences, asked, strict=True):
        tokens, reason = alone(lab, trace.family, request)
        if sequence.id in gone:
            assert (sequence.error, sequence.output_ids) == (None, tokens[: gone[sequence.id]])
        else:
            assert (sequence.output_ids, sequence.finish_reason) == (tokens, reason)
        lab.computes(service.run(sequence), service.model, "trace", str(trace))
    return service.state
