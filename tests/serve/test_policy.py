"""The policy: small steps while few are here, large ones under load; what is said never depends on it."""

import pytest

from minfer.core.params import SamplingParams
from minfer.phase5 import Engine
from minfer.serve.policy import Aim, Policy
from tests.serve.serving import engine_of

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture
def fresh(module, tokenizer):
    return engine_of(module, tokenizer, Engine, max_batch=8, token_budget=40)


def steps(engine, policy, prompts):
    """(rows, tokens of prompts) of each step until all are answered, and the answers."""
    made = [engine.submit(prompt, PARAMS) for prompt in prompts]
    seen = []
    while not all(sequence.finished for sequence in made):
        policy.steer(engine)
        before = {sequence.id: bool(sequence.output_ids) for sequence in made}
        engine.step()
        fed = zip(engine.scheduled, engine.counts, strict=True)
        prompt_tokens = sum(count for sequence, count in fed if not before[sequence.id])
        seen.append((len(engine.scheduled), prompt_tokens))
    state = engine.debug_state()
    assert state["free"] == state["num_blocks"]
    return seen, [sequence.output_ids for sequence in made]


def prompts(*lengths):
    return [[5 + (n + i) % 20 for i in range(length)] for n, length in enumerate(lengths)]


def test_no_policy_changes_an_answer(module, tokenizer):
    asked = prompts(3, 30, 9, 17, 5, 40, 2, 11, 23, 8)
    said = []
    for aim in Aim:
        engine = engine_of(module, tokenizer, Engine, max_batch=8, token_budget=40)
        said.append(steps(engine, Policy(aim, rows=3, prompt_tokens=5), asked)[1])
    assert said[0] == said[1] == said[2]


def test_throughput_fills_the_batch_and_latency_does_not(module, tokenizer):
    asked = prompts(*[4] * 10)
    large, _ = steps(engine_of(module, tokenizer, Engine, token_budget=40), Policy(Aim.THROUGHPUT, 3, 5), asked)
    small, _ = steps(engine_of(module, tokenizer, Engine, token_budget=40), Policy(Aim.LATENCY, 3, 5), asked)
    assert max(rows for rows, _ in large) == 8
    assert max(rows for rows, _ in small) == 3
    assert len(large) < len(small)


def test_a_long_prompt_is_fed_in_pieces_beside_those_who_decode_and_whole_where_nobody_does(fresh):
    policy = Policy(Aim.LATENCY, rows=4, prompt_tokens=5)
    first = fresh.submit(prompts(30)[0], PARAMS)
    policy.steer(fresh)
    fresh.step()
    assert fresh.counts == [30], "nobody waits: the whole prompt"
    second = fresh.submit(prompts(6, 30)[1], PARAMS)
    pieces = []
    while not second.output_ids:
        policy.steer(fresh)
        tokens = len(first.output_ids)
        fresh.step()
        assert len(first.output_ids) == tokens + 1, "who decodes gets a token in each step"
        pieces.append(dict(zip([s.id for s in fresh.scheduled], fresh.counts, strict=True)).get(second.id, 0))
    assert max(pieces) <= 5 + 3  # what the free rows of the batch do not use, goes to the prompt
    assert sum(pieces) == 30


def test_auto_is_small_while_few_are_here_and_large_under_load(fresh):
    policy = Policy(Aim.AUTO, rows=3, prompt_tokens=5)
    few = [fresh.submit(prompt, PARAMS) for prompt in prompts(4, 4)]
    policy.steer(fresh)
    assert fresh.scheduler.limits.max_batch == 3
    fresh.step()
    many = [fresh.submit(prompt, PARAMS) for prompt in prompts(*[4] * 6)]
    policy.steer(fresh)
    assert fresh.scheduler.limits == fresh.scheduler.most
    fresh.step()
    assert len(fresh.scheduler.running) == 8
    for sequence in many:
        fresh.abort(sequence.id)
    policy.steer(fresh)
    assert fresh.scheduler.limits.max_batch == 3
    while not all(sequence.finished for sequence in few):
        fresh.step()


def test_when_it_becomes_small_who_runs_goes_on(fresh):
    """Eight run, the limit falls to two: each still gets its token in every step."""
    made = [fresh.submit(prompt, PARAMS) for prompt in prompts(*[4] * 8)]
    fresh.step()
    assert len(fresh.scheduler.running) == 8
    fresh.scheduler.restrict(2, 1)
    waiting = fresh.submit([5, 6], PARAMS)
    for count in range(2, 5):
        fresh.step()
        assert [len(sequence.output_ids) for sequence in made] == [count] * 8
    assert waiting.output_ids == []
    while not waiting.finished:
        fresh.step()


def test_it_never_exceeds_what_the_engine_was_made_for(fresh):
    fresh.scheduler.restrict(10**6, 10**6)
    assert fresh.scheduler.limits == fresh.scheduler.most
