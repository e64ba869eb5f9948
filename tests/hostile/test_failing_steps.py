"""A step that fails: whoever is to blame fails, the others get their answers, and no block is lost."""

import pytest
import torch

from minfer.core.errors import MinferError, MinferWarning
from minfer.core.sequence import FinishReason
from minfer.core.tokenizer.stream_decoder import StreamDecoder
from minfer.course.lab.scripted import Pieces
from minfer.phase4 import Engine as Phase4Engine
from minfer.phase5 import Engine
from tests.hostile.failing import MARK, Failing, FailsInTheMiddle, right_tokens, serving, works

pytestmark = pytest.mark.usefixtures("phases")


class Healing:
    """Mixed in: fails in its third step only."""

    steps = 0

    def blames(self, sequences):
        self.steps += 1
        return self.steps == 3


@pytest.fixture
def model(lab):
    return lab.model("mistral")


def submit(service, lab, lengths=(6, 9, 4), counts=(5, 9, 7), culprit=None):
    """Requests with these prompts; the one at `culprit` begins with the mark, the others do not."""
    for place, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        rest = [token for token in lab.prompt(service.model, length) if token != MARK]
        start = [MARK] if place == culprit else [5]
        service.submit(start + rest, lab.params(count))
    return service.sequences


@pytest.mark.parametrize("hook", ["prepare", "forward", "sample", "commit", "after commit"])
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_only_the_culprit_fails(lab, model, hook, culprit):
    service = serving(Failing, lab, model, chunk_size=5)
    service.engine.hook = hook
    submit(service, lab, culprit=culprit)
    service.drain()
    blamed = service.sequences.pop(culprit)
    assert (blamed.finish_reason, blamed.error) == (FinishReason.ABORT, Failing.error)
    assert blamed.completion().error == "ArithmeticError: planted"
    right_tokens(model, service.sequences)
    works(service)


@pytest.mark.parametrize("hook", ["prepare", "forward", "sample", "commit"])
def test_a_step_that_fails_once_costs_nobody_an_answer(lab, model, hook):
    service = serving(type("Once", (Healing, Failing), {}), lab, model)
    service.engine.hook = hook
    submit(service, lab)
    service.drain()
    right_tokens(model, service.sequences)
    works(service)


def test_after_a_failed_step_the_queues_are_in_order_of_arrival_again(lab, model):
    service = serving(type("Once", (Healing, Failing), {}), lab, model)
    submit(service, lab, lengths=(6, 9, 4, 3), counts=(9, 9, 9, 9))
    with pytest.warns(MinferWarning, match=r"a step of 4 requests failed \(ArithmeticError: planted\)"):
        service.until(lambda: service.engine.scheduler.suspects)
    service.until(lambda: not service.engine.scheduler.suspects)
    service.step()
    came = [sequence.id for sequence in service.sequences]
    state = service.state
    assert [*state["running"], *state["waiting"]] == [request for request in came if request in state["tables"]]
    assert len(state["running"]) == 4


def test_who_had_its_last_token_when_a_neighbour_failed_is_done(lab, model):
    service = serving(FailsInTheMiddle, lab, model)
    submit(service, lab, counts=(1, 9, 7), culprit=1)
    service.drain()
    blamed = service.sequences.pop(1)
    assert blamed.error is Failing.error
    right_tokens(model, service.sequences)
    works(service)


def test_a_request_without_end_is_not_revived_by_another_that_fails(lab, model):
    service = serving(type("Once", (Healing, FailsInTheMiddle), {}), lab, model)
    submit(service, lab, counts=(2, 3, 1))
    service.drain()
    right_tokens(model, service.sequences)
    works(service)


class Brittle(Pieces):
    """Cannot say what a request that begins with the mark says from its third token on."""

    def stream_decoder(self, prompt_ids=()):
        decoder = super().stream_decoder(prompt_ids)
        return BrittleDecoder(decoder._table, prompt_ids) if MARK in prompt_ids else decoder


class BrittleDecoder(StreamDecoder):
    pushed = 0

    def push(self, token_id):
        self.pushed += 1
        if self.pushed > 2:
            raise UnicodeError("planted")
        return super().push(token_id)


def test_a_tokenizer_that_fails(lab, model):
    service = serving(Engine, lab, model, tokenizer=Brittle(lab.sizes.vocab, {}, [lab.eos]))
    submit(service, lab, culprit=1)
    service.drain()
    blamed = service.sequences.pop(1)
    assert isinstance(blamed.error, UnicodeError)
    right_tokens(model, service.sequences)
    works(service)


class BrittleOnce(BrittleDecoder):
    def push(self, token_id):
        self.pushed += 1
        if self.pushed == 3:
            raise UnicodeError("planted")
        return StreamDecoder.push(self, token_id)


class FailsOnce(Pieces):
    def stream_decoder(self, prompt_ids=()):
        kind = BrittleOnce if MARK in prompt_ids else StreamDecoder
        return kind(self._table, prompt_ids)


def test_a_tokenizer_that_fails_once_loses_no_text(lab, model):
    service = serving(Engine, lab, model, tokenizer=FailsOnce(lab.sizes.vocab, {}, [lab.eos]))
    submit(service, lab, culprit=1)
    service.drain()
    right_tokens(model, service.sequences)
    for sequence in service.sequences:
        assert sequence.text == "".join(f" {token}" for token in sequence.output_ids)


def test_generate_marks_the_failed_and_raises_only_if_all_failed(lab, model):
    service = serving(Failing, lab, model)
    good = lab.prompt(model, 5)
    completions = service.engine.generate([[MARK, 5], good], lab.params(4))
    assert [one.finish_reason for one in completions] == [FinishReason.ABORT, FinishReason.LENGTH]
    assert completions[0].error == "ArithmeticError: planted"
    assert completions[1].token_ids == model.oracle.greedy(good, 4)[0]
    with pytest.raises(ArithmeticError, match="planted"):
        service.engine.generate([[MARK, 5], [MARK, 6]], lab.params(4))
    with pytest.raises(ArithmeticError, match="planted"):
        list(service.engine.stream([MARK, 5], lab.params(4)))
    works(service)


@pytest.mark.parametrize("hook", ["sample", "commit", "after commit"])
def test_log_probabilities_of_a_failed_step_are_not_kept(lab, model, hook):
    service = serving(type("Once", (Healing, Failing), {}), lab, model)
    service.engine.hook = hook
    for length in (6, 4):
        service.submit(lab.prompt(model, length), lab.params(6, logprobs=1))
    service.drain()
    for sequence in service.sequences:
        assert [one.token_id for one in sequence.completion().logprobs] == sequence.output_ids
    right_tokens(model, service.sequences)


# ---- numbers that are none -------------------------------------------------------------------------------------------


def poisoned(model):
    """The model with NaN for the token of the mark, and parameters that never draw it."""
    module = model.module()
    module.embed_tokens.weight.data[MARK] = float("nan")
    return module, {"logit_bias": {MARK: -1e9}}


@pytest.mark.parametrize("chunk", [None, 2])
def test_nan_of_one_request_reaches_no_other(lab, model, chunk):
    """Nor one that comes later: 0 · NaN is NaN, so no mask hides what a block of its held."""
    module, bias = poisoned(model)
    service = serving(Engine, lab, module, num_blocks=8, chunk_size=chunk, tokenizer=lab.tokenizer())
    params = lab.params(5, **bias)
    sick = [5, MARK, 6, 7, 8, 9, 10, 11]
    for prompt in (sick, [5, 6, 7], [9, 9]):
        service.submit(prompt, params)
    service.drain()
    assert isinstance(service.sequences.pop(0).error, MinferError)
    right_tokens(model, service.sequences)
    for prompts in ([[5, 6, 7], [8, 9, 10, 11, 12, 13]], [[5, 6]], [[1, 2, 3, 4, 5, 6, 7, 8, 9], [6]]):
        service.sequences.clear()
        for prompt in prompts:
            service.submit(prompt, params)
        service.drain()
        right_tokens(model, service.sequences)


def test_nan_of_a_prompt_that_was_aborted_half_way_reaches_no_other(lab, model):
    """No token was drawn from it, so nobody has seen yet that it was sick."""
    for share in (False, True):
        module, bias = poisoned(model)
        service = serving(Engine, lab, module, num_blocks=4, chunk_size=3, share_prefixes=share)
        sick = service.submit([5, MARK, 6, 7, 8, 9, 10], lab.params(3, **bias))
        service.step()
        service.step()
        assert service.engine.abort(sick.id)
        service.sequences.clear()
        for prompts in ([[5, 6], [7], [8], [9]], [[5, 6, 7, 8, 9]]):
            for prompt in prompts:
                service.submit(prompt, lab.params(4, **bias))
            service.drain()
        right_tokens(model, service.sequences)


def test_nan_of_a_batch_does_not_reach_the_next(lab, model):
    module, bias = poisoned(model)
    engine = lab.engine(Phase4Engine, module)
    params = lab.params(7, **bias)
    with pytest.raises(MinferError, match="NaN"):
        engine.generate([[5, MARK, 6, 7, 8, 9, 10, 11], [5, 6, 7]], params)
    for prompts in ([[5, 6, 7], [8, 9, 10, 11, 12, 13]], [[1, 2, 3, 4, 5, 6, 7, 8, 9], [6]]):
        for completion in engine.generate(prompts, params):
            assert completion.token_ids == model.oracle.greedy(completion.prompt_ids, 7)[0]


# ---- interrupts and memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["prepare", "forward", "sample", "commit", "after commit"])
def test_an_interrupt_leaves_the_engine_as_it_was_before_the_step(lab, model, hook):
    interrupted = type("Interrupted", (Healing, Failing), {"error": KeyboardInterrupt()})
    service = serving(interrupted, lab, model)
    service.engine.hook = hook
    submit(service, lab, counts=(3, 9, 7))
    with pytest.raises(KeyboardInterrupt):
        service.drain()
    service.check()
    service.drain()
    right_tokens(model, service.sequences)
    works(service)


def test_an_interrupt_in_generate_takes_its_requests_back(lab, model):
    service = serving(type("Interrupted", (Healing, Failing), {"error": KeyboardInterrupt()}), lab, model)
    other = service.submit(lab.prompt(model, 5), lab.params(9))
    with pytest.raises(KeyboardInterrupt):
        service.engine.generate([lab.prompt(model, 4), lab.prompt(model, 7)], lab.params(6))
    assert [made.finish_reason for made in service.engine.record.made] == [None, FinishReason.ABORT, FinishReason.ABORT]
    service.drain()
    right_tokens(model, [other])
    works(service)


class OutOfMemory(Failing):
    """There is room for one request at a time."""

    def blames(self, sequences):
        return len(sequences) > 1


@pytest.mark.parametrize("error", [MemoryError("planted"), torch.OutOfMemoryError("planted")])
def test_a_step_that_runs_out_of_memory_is_taken_in_smaller_ones(lab, model, error):
    service = serving(type("OutOfMemory", (OutOfMemory,), {"error": error}), lab, model)
    submit(service, lab)
    service.drain()
    right_tokens(model, service.sequences)
    service.empty()


def test_a_request_that_is_too_much_by_itself_fails_alone(lab, model):
    class TooLong(Failing):
        error = MemoryError("planted")

        def blames(self, sequences):
            return any(len(sequence.token_ids) > 20 for sequence in sequences)

    service = serving(TooLong, lab, model)
    submit(service, lab, lengths=(6, 18, 4))
    service.drain()
    assert isinstance(service.sequences.pop(1).error, MemoryError)
    right_tokens(model, service.sequences)
    works(service)


def test_a_prompt_that_cannot_be_scored_fails_alone(lab, model):
    """Log-probabilities of a prompt take a forward of their own."""

    class CannotScore(Engine):
        def score(self, sequence):
            raise MemoryError("planted")

    service = serving(CannotScore, lab, model)
    submit(service, lab)
    scored = service.submit(lab.prompt(model, 5), lab.params(3, prompt_logprobs=0))
    service.drain()
    assert isinstance(scored.error, MemoryError)
    right_tokens(model, service.sequences[:-1])
    works(service)
