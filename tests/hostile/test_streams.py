"""Streams that are left: closed, dropped, collected while the engine is in the middle of a step."""

import gc

import pytest

from minfer.core.sequence import FinishReason
from minfer.phase5 import Engine
from tests.hostile.failing import right_tokens, serving, works

pytestmark = pytest.mark.usefixtures("phases")


@pytest.fixture
def model(lab):
    return lab.model("llama3")


def streaming(lab, model, engine_cls=Engine, **options):
    return serving(engine_cls, lab, model, tokenizer=lab.tokenizer(), **options)


@pytest.mark.parametrize("pieces", [0, 1, 4])
def test_a_stream_that_is_closed_early(lab, model, pieces):
    service = streaming(lab, model)
    other = service.submit(lab.prompt(model, 9), lab.params(6))
    stream = service.engine.stream(lab.prompt(model, 6), lab.params(9))
    for _ in range(pieces):
        next(stream)
    stream.close()
    if pieces:
        assert service.engine.record.made[-1].finish_reason is FinishReason.ABORT
    service.step()
    service.drain()
    right_tokens(model, [other])
    works(service)


def test_a_stream_that_nobody_holds_any_more(lab, model):
    service = streaming(lab, model)
    stream = service.engine.stream(lab.prompt(model, 6), lab.params(9))
    next(stream)
    cycle = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()
    assert service.engine.record.made[-1].finish_reason is FinishReason.ABORT
    works(service)


def test_a_stream_into_which_an_error_is_thrown(lab, model):
    service = streaming(lab, model)
    stream = service.engine.stream(lab.prompt(model, 6), lab.params(9))
    next(stream)
    with pytest.raises(LookupError):
        stream.throw(LookupError("planted"))
    assert list(stream) == []
    works(service)


def test_a_run_that_is_left_after_some_steps(lab, model):
    service = streaming(lab, model)
    sequences = service.engine.sequences([lab.prompt(model, length) for length in (4, 8)], lab.params(5))
    for _ in service.engine.run(sequences):
        break
    gc.collect()
    assert {sequence.finish_reason for sequence in sequences} == {FinishReason.ABORT}
    works(service)


class ClosesInAStep(Engine):
    """Closes what is in `streams` at the `nth` call of `place` from then on, as the collector of garbage may."""

    place, nth, calls = "forward", 1, 0
    streams = ()

    def allocate(self):
        super().allocate()
        allocator, scheduler = self.scheduler.allocator, self.scheduler
        allocator.allocate = self.closing("allocate", allocator.allocate)
        scheduler.schedule = self.closing("schedule", scheduler.schedule)
        for hook in ("prepare", "forward", "sample", "commit"):
            setattr(self, hook, self.closing(hook, getattr(self, hook)))

    def closing(self, place, inner):
        def call(*args):
            if place == self.place and self.streams:
                self.calls += 1
                if self.calls == self.nth:
                    self.streams.pop().close()
            return inner(*args)

        return call


@pytest.mark.parametrize("place", ["schedule", "allocate", "prepare", "forward", "sample", "commit"])
@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize("first", [True, False])
def test_a_stream_that_is_collected_in_the_middle_of_a_step(lab, model, place, nth, first):
    service = streaming(lab, model, ClosesInAStep, num_blocks=14, chunk_size=5)
    engine = service.engine
    engine.place, engine.nth = place, nth
    prefix = lab.prompt(model, 9)
    stream = engine.stream(prefix, lab.params(9))
    if first:
        next(stream)
    for rest in (3, 1):
        service.submit(prefix + lab.prompt(model, rest), lab.params(6))
    if not first:
        next(stream)
    engine.streams = [stream]
    while service.unfinished or engine.streams:
        engine.step()
    left = next(made for made in engine.record.made if made not in service.sequences)
    assert left.finish_reason is FinishReason.ABORT
    length = len(left.output_ids)
    right_tokens(model, service.sequences)
    service.empty()
    service.submit(prefix, lab.params(4))
    service.drain()
    right_tokens(model, service.sequences[-1:])
    assert len(left.output_ids) == length
    works(service)
