"""Requests that are too large, too many, or taken back: at any time, twice, or without ever having been there."""

import pytest

from minfer.core.errors import RequestError
from minfer.core.sequence import FinishReason, Status
from minfer.phase5 import Engine
from tests.hostile.failing import right_tokens, serving, works


@pytest.fixture
def model(lab):
    return lab.model("qwen2-windows")


def test_a_request_larger_than_the_pool_is_refused_with_the_numbers(lab, model):
    service = serving(Engine, lab, model, num_blocks=5)
    large, params = lab.prompt(model, 17), lab.params(5)
    said = "prompt of 17 and answer of up to 5 tokens need 6 blocks, the pool has 5: lower max_tokens, .*num_blocks=6"
    for ask in (service.engine.sequences, service.engine.generate):
        with pytest.raises(RequestError, match=said):
            ask([[5], large], params)
    for ask in (service.engine.submit, service.engine.stream):
        with pytest.raises(RequestError, match=said):
            ask(large, params)
    assert service.engine.record.forwarded == []
    service.submit(large, lab.params(4))  # 20 tokens need room: the last one is never fed
    service.drain()
    right_tokens(model, service.sequences)
    works(service)


def test_no_limit_asks_for_the_whole_context(lab, model):
    service = serving(Engine, lab, model, num_blocks=5)
    with pytest.raises(RequestError, match=r"need \d+ blocks, the pool has 5"):
        service.engine.submit([5, 6], lab.params(None))
    fits = serving(Engine, lab, model, num_blocks=5, context=21)
    fits.submit([5, 6], lab.params(None))
    fits.drain()
    assert len(fits.sequences[0].token_ids) == 21
    works(fits)


def test_a_thousand_requests_on_eight_blocks(lab):
    """In a scripted model, so that only the books cost time; answers of 1 to 9 tokens, some ended early."""
    script = [9] * 10 + [lab.eos] + [8] * lab.sizes.context
    service = serving(Engine, lab, lab.scripted(1, script[: lab.sizes.context]), num_blocks=8, max_batch=6)
    for number in range(1000):
        length, count = 1 + number % 13, 1 + number % 9
        service.submit([4 + number % 50] * length, lab.params(count, ignore_eos=number % 2 == 0))
    service.until(lambda: not service.unfinished, check=False)
    service.empty()
    for number, sequence in enumerate(service.sequences):
        length, count = 1 + number % 13, 1 + number % 9
        whole = script[length - 1 :][:count]
        ends = whole.index(lab.eos) + 1 if number % 2 and lab.eos in whole else count
        assert sequence.output_ids == whole[:ends], number
    assert service.state["waiting"] == []


@pytest.mark.usefixtures("phases")
def test_aborts_in_every_state(lab, model):
    service = serving(Engine, lab, model, num_blocks=9, max_batch=2, chunk_size=4, share_prefixes=False)
    abort = service.engine.abort
    decoding, prefilling, waiting = (service.submit(lab.prompt(model, length), lab.params(9)) for length in (3, 17, 5))
    fresh = service.submit(lab.prompt(model, 4), lab.params(9))
    assert abort(fresh.id)  # not seen by any step yet
    service.step()
    assert (len(decoding.output_ids), prefilling.output_ids, waiting.status) == (1, [], Status.WAITING)
    assert prefilling.num_cached in (4, 8)  # the second chunk may be launched by now
    for sequence in (decoding, prefilling, waiting):
        assert abort(sequence.id)
        assert (sequence.finish_reason, sequence.error) == (FinishReason.ABORT, None)
        service.check()
    for sequence in service.sequences:
        assert not abort(sequence.id)
    assert service.engine.step() == []
    done = service.submit(lab.prompt(model, 4), lab.params(2))
    service.drain()
    assert not abort(done.id)
    assert done.finish_reason is FinishReason.LENGTH
    works(service)


@pytest.mark.usefixtures("phases")
def test_aborts_of_who_gave_way(lab, model):
    service = serving(Engine, lab, model, num_blocks=6, share_prefixes=False)
    first, second = (service.submit(lab.prompt(model, 9), lab.params(12)) for _ in range(2))
    service.until(lambda: service.state["preemptions"] > 0)
    assert second.status is Status.WAITING
    assert second.output_ids
    assert service.engine.abort(second.id)
    service.drain()
    right_tokens(model, [first])
    works(service)


@pytest.mark.parametrize("unknown", [-1, 10**9, None, "7"])
def test_aborts_of_what_never_was(lab, model, unknown):
    service = serving(Engine, lab, model)
    service.submit(lab.prompt(model, 3), lab.params(3))
    service.step()
    assert service.engine.abort(unknown) is False
    service.drain()
    right_tokens(model, service.sequences)


def test_a_bad_request_leaves_those_that_run_alone(lab, model):
    service = serving(Engine, lab, model)
    service.submit(lab.prompt(model, 6), lab.params(8))
    service.step()
    for prompt in ([], [model.config.vocab_size], "text", lab.prompt(model, 5) * model.context):
        with pytest.raises(RequestError):
            service.engine.submit(prompt, lab.params(3))
        service.step()
    service.drain()
    right_tokens(model, service.sequences)
    works(service)
