"""Random traces on phase 5: whatever comes, when, and into whatever pool, each answer is the one that it is alone."""

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from minfer.core.sequence import FinishReason
from minfer.phase5 import Engine
from tests.traces.trace import FAMILIES, Request, alone, follow, options, requests, traces

same_every_time = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@same_every_time
@given(trace=traces)
def test_every_answer_is_the_one_alone(lab, trace):
    state = follow(lab, trace)
    event("somebody gave way" if state["preemptions"] else "nobody gave way")
    event("something was shared" if state["shared_tokens"] else "nothing was shared")


turns = st.lists(
    st.tuples(st.integers(0, 1), st.one_of(requests, requests, st.integers(0, 5), st.integers(-3, -1))),
    min_size=8,
    max_size=30,
)


@settings(same_every_time, max_examples=40)
@given(family=st.sampled_from(FAMILIES), both=st.tuples(options(), options()), turns=turns)
def test_streams_open_at_once_on_two_engines(lab, family, both, turns):
    """A turn is an engine and a stream to open, a piece of an open one to take, or one to close."""
    model = lab.model(family)
    engines = [lab.engine(Engine, model, lab.tokenizer(), **own) for own in both]
    streams = [[], []]
    for which, turn in turns:
        engine, own = engines[which], streams[which]
        if isinstance(turn, Request):
            own.append(Stream(engine.stream(turn.prompt, turn.params(lab)), turn))
        elif own and turn >= 0:
            own[turn % len(own)].take()
        elif own:
            own[turn % len(own)].close()
    for engine, own in zip(engines, streams, strict=True):
        asked = [stream.request for stream in own[:2]]
        if asked:  # in the middle of open streams
            prompts, params = [one.prompt for one in asked], [one.params(lab) for one in asked]
            for completion, one in zip(engine.generate(prompts, params), asked, strict=True):
                assert (completion.token_ids, completion.finish_reason) == alone(lab, family, one)
        for stream in own:
            stream.finish(lab, family)
        state = engine.debug_state()
        assert (state["free"], state["tables"], state["waiting"]) == (state["num_blocks"], {}, [])


class Stream:
    """A stream, what it was asked, and what came of it so far."""

    def __init__(self, pieces, request):
        self.pieces, self.request, self.text, self.closed = pieces, request, "", False

    def take(self):
        self.text += next(self.pieces, "")

    def close(self):
        self.pieces.close()
        self.closed = True

    def finish(self, lab, family):
        self.text += "".join(self.pieces)
        tokens, reason = alone(lab, family, self.request)
        said = tokens[:-1] if reason is FinishReason.STOP else tokens
        want = "".join(f" {token}" for token in said)
        assert want.startswith(self.text) if self.closed else self.text == want
