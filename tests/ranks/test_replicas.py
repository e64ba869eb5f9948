"""Replicas: one queue, several engines: the same answers, whoever gives them; and an end for all when one dies."""

import os
import signal
import time
from functools import partial
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
import torch

from minfer.core.errors import OptionsError
from minfer.core.params import SamplingParams
from minfer.course.grader.plugin import DEFAULT_SEED
from minfer.course.lab.tiny import tiny_model
from minfer.phase10 import RankError
from minfer.phase10.replica_message import Advance, TakeBack
from minfer.phase10.replica_worker import ReplicaWorker, usage_of
from minfer.phase10.replicas import Replica, Replicas
from minfer.phase11 import Engine
from tests.ranks.processes import children, gone

FEW = {"max_batch": 4, "graph_batch": 2, "num_blocks": 40, "block_size": 4, "replicas": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A model, and an engine of two replicas of it."""
    model = tiny_model("llama", DEFAULT_SEED)
    engine = Engine.load(str(model.save(tmp_path_factory.mktemp("two"))), dtype="float64", **FEW)
    yield model, engine
    engine.close()


@pytest.fixture
def new_children():
    """The processes that were started since the test began."""
    before = children()
    return lambda: [pid for pid in children() if pid not in before]


def asked(lab, model):
    """Prompts and parameters of twelve requests: greedy, sampled, with log-probabilities."""
    prompts = [lab.prompt(model, 3 + number % 5) for number in range(12)]
    kinds = ({}, {"temperature": 1.5, "seed": 3}, {"logprobs": 2, "prompt_logprobs": 1})
    return prompts, [lab.params(4 + number % 4, **kinds[number % 3]) for number in range(12)]


def seen(completion):
    """What a user sees; log-probabilities to nine places."""
    logprobs = [round(one.logprob, 9) for one in completion.logprobs or []]
    prompt = [one and round(one.logprob, 9) for one in completion.prompt_logprobs or []]
    return completion.token_ids, completion.text, completion.finish_reason, completion.index, logprobs, prompt


def test_two_answer_as_one_does(lab, two):
    model, engine = two
    prompts, params = asked(lab, model)
    alone = lab.engine(Engine, model, engine.tokenizer, num_blocks=40, block_size=4)
    sizes, advance = set(), engine.replicas.advance

    def watched(clock, block):
        sizes.add(len(engine.replicas.all[0].given))
        return advance(clock, block)

    engine.replicas.advance = watched
    want, got = alone.generate(prompts, params), engine.generate(prompts, params)
    del engine.replicas.advance
    assert [seen(one) for one in got] == [seen(one) for one in want]
    assert max(sizes) == FEW["max_batch"], "a replica had never as many as it has room for, or more"
    rows = engine.requests()
    assert sorted(row["output_tokens"] for row in rows) == sorted(len(one.token_ids) for one in got)
    assert all(row["queue"] >= 0 and row["prefill"] >= 0 for row in rows)
    assert engine.kv_usage() == (0, 0)
    states = [engine.debug_state(), *engine.debug_state()["replicas"]]
    assert [state["used"] for state in states] == [0, 0]


class Resting:
    """Takes an engine's first steps, and no more before a file is there."""

    def __init__(self, engine, told):
        self.engine, self.told, self.taken = engine, told, 0

    def step(self):
        if self.taken == 3 and not self.told.exists():
            time.sleep(0.01)
            return []
        self.taken += 1
        return self.engine.step()


def rest(served, told):
    """A question to a replica, after which it has soon something in hand that does not end."""
    served.stepper = Resting(served.engine, told)


def rest_no_more(served):
    """A question to a replica, after which it is as it was."""
    served.stepper = served.engine


def test_streams_and_aborts_reach_whoever_has_the_request(lab, two, tmp_path):
    model, engine = two
    (replica,) = engine.replicas.all
    replica.ask(partial(rest, told=tmp_path / "told"))
    text = [engine.submit([5, 6, 7], lab.params(30)) for _ in range(8)]
    for _ in range(3):
        engine.step()
    there = replica.given
    inside, outside = ([one for one in text if (one.id in there) == here] for here in (True, False))
    assert len(inside) == len(outside) == 4
    while not (running := engine.debug_state()["replicas"][0]["running"]):  # by itself: when it has read of them
        pass
    assert set(running) <= {one.id for one in inside}
    for one in (inside[0], outside[0]):
        assert engine.abort(one.id)
        assert one.finished
        assert not engine.abort(one.id)
    (tmp_path / "told").touch()
    pieces = list(engine.stream([5, 6, 7], lab.params(6)))
    (plain,) = engine.generate([[5, 6, 7]], lab.params(6))
    assert "".join(pieces) == plain.text
    while not all(one.finished for one in text):
        engine.step()
    whole = [one.output_ids for one in text if one not in (inside[0], outside[0])]
    replica.ask(rest_no_more)
    assert whole == [model.oracle.greedy([5, 6, 7], 30)[0]] * 6
    assert engine.kv_usage() == (0, 0)


def test_what_was_sent_before_a_question_is_heard_before_it_is_answered():
    (ours, link), (asking, questions), heard = Pipe(), Pipe(), []
    served = ReplicaWorker(SimpleNamespace(abort=heard.append), link, questions)
    ours.send(TakeBack(7))
    served.answer(3, lambda _: list(heard))
    assert asking.recv() == (3, [7])


def test_who_steps_does_not_wait_until_a_replica_has_read():
    """Else a replica that waits until a long answer of its is read, and one that hands it much, wait for ever."""
    (ours, theirs), (questions, _) = Pipe(), Pipe()
    replica = Replica(1, SimpleNamespace(), ours, questions, 5.0)
    for number in range(2000):  # more than a pipe holds
        replica.send(["x" * 1000, number])
    assert replica.outbox.qsize()
    assert [theirs.recv()[1] for _ in range(2000)] == list(range(2000))
    replica.send(None)
    replica.sender.join()
    with pytest.raises(EOFError):
        theirs.recv()


def test_a_token_has_the_time_at_which_it_was_read_not_at_which_it_began_to_be_waited_for(lab, two):
    """Else it may be earlier than the step that drew it, and the time of its prompt be negative."""
    _, engine = two
    (ours, theirs), (questions, _), times = Pipe(), Pipe(), [1.0]
    replica = Replica(1, SimpleNamespace(), ours, questions, 5.0)
    (sequence,) = engine.sequences([[5, 6, 7]], lab.params(9))
    replica.take(sequence, (), 0.0)
    theirs.send([Advance(sequence.id, [8], [], None, shared=0, waited=1.5, drawing=0.25, error=None)])
    receive = replica.receive

    def late():
        times.append(3.0)
        return receive()

    replica.receive = late
    assert Replicas([replica], 5.0, 1).advance(lambda: times[-1], block=True) == [sequence]
    assert (sequence.timestamps.scheduled, sequence.timestamps.tokens) == (1.5, [3.0])
    replica.send(None)


def half_of(served):
    """A question that fails."""
    return len(served.told) / 0


def when_told(served, told):
    """A question that is answered when a file is there."""
    while not told.exists():
        time.sleep(0.01)
    return "late"


def test_a_question_that_fails_or_takes_long_is_nobody_elses(lab, two, monkeypatch, tmp_path):
    _, engine = two
    (replica,) = engine.replicas.all
    with pytest.raises(ZeroDivisionError):
        replica.ask(half_of)
    with monkeypatch.context() as patched:
        patched.setattr(replica, "patience", 0.02)
        with pytest.raises(RankError, match=r"replica 1 gave no answer for 0\.02 s"):
            replica.ask(partial(when_told, told=tmp_path / "told"))
    (tmp_path / "told").touch()
    assert tuple(replica.ask(usage_of)) == (0, 0)
    assert len(engine.generate([[5, 6], [6, 7]], lab.params(3))) == 2


def test_a_request_waits_in_the_one_queue_until_anybody_has_room(lab, two):
    _, engine = two
    many = [engine.submit([5, 6], lab.params(40)) for _ in range(11)]  # none ends meanwhile
    engine.step()
    assert len(engine.inbox) == 3
    waiting = many[-1]
    assert engine.abort(waiting.id)
    assert len(engine.inbox) == 2
    while not all(one.finished for one in many):
        engine.step()
    assert engine.step() == []


def test_a_replica_may_be_dealt_to_ranks_and_leaves_none_behind(lab, new_children):
    model, threads = lab.model("qwen3"), torch.get_num_threads()
    engine = Engine.load(str(model.save(lab.new_folder())), dtype="float64", tensor_parallel=2, **FEW)
    own = new_children()
    below = [pid for above in own for pid in children(above)]
    assert (len(own), len(below)) == (2, 1)
    prompts = [lab.prompt(model, length) for length in (3, 5, 7)]
    for prompt, completion in zip(prompts, engine.generate(prompts, lab.params(5)), strict=True):
        assert completion.token_ids == model.oracle.greedy(prompt, 5)[0]
    del engine  # collected: all end
    assert gone([*own, *below])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_replica_that_dies_ends_all_with_its_error(lab, new_children, how):
    patience = 4.0 if how == "stopped" else 60.0
    engine = Engine.load(str(lab.model("tied").save(lab.new_folder())), rank_timeout=patience, **FEW)
    (pid,) = new_children()
    os.kill(pid, signal.SIGSTOP)  # or it may have answered before it is killed
    requests = [engine.submit([5, 6, 7], SamplingParams(max_tokens=None, ignore_eos=True)) for _ in range(3)]
    engine.step()
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    while not all(one.finished for one in requests):
        engine.step()
    assert time.monotonic() - started < 50
    lost = [one for one in requests if one.error is not None]
    assert len(lost) >= 1
    assert all(isinstance(one.error, RankError) for one in lost)
    said = "replica 1 was killed by SIGKILL" if how == "killed" else f"replica 1 gave no answer for {patience:g} s"
    assert said in str(lost[0].error)
    assert not new_children()
    with pytest.raises(RankError, match="the replicas have ended"):
        engine.generate([[5]])
    engine.close()


def test_a_replica_that_died_while_there_was_nothing_to_do_is_found_when_it_is_dealt_a_request(lab, new_children):
    engine = Engine.load(str(lab.model("tied").save(lab.new_folder())), **FEW)
    (pid,) = new_children()
    os.kill(pid, signal.SIGKILL)
    engine.replicas.all[0].process.listener.join()  # its output has closed
    requests = [engine.submit([5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True)) for _ in range(2)]
    while not all(one.finished for one in requests):
        engine.step()
    assert [str(one.error) for one in requests] == ["replica 1 was killed by SIGKILL"] * 2
    assert not new_children()


def test_who_asks_a_replica_that_died_hears_at_once_what_it_died_of(lab, new_children):
    engine = Engine.load(str(lab.model("tied").save(lab.new_folder())), **FEW)
    (replica,) = engine.replicas.all
    (pid,) = new_children()
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):  # while it is not buried, and then
        started = time.monotonic()
        with pytest.raises(RankError, match=r"^replica 1 was killed by SIGKILL$"):
            replica.ask(usage_of)
        assert time.monotonic() - started < replica.patience / 2
        engine.close()


def test_what_cannot_be_is_refused_before_anything_is_started(lab, monkeypatch, new_children):
    folder = str(lab.model("llama").save(lab.new_folder()))
    with pytest.raises(OptionsError, match="replicas = 0"):
        Engine.load(folder, device="cpu", replicas=0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionsError, match="torchrun's ranks are one engine's"):
        Engine.load(folder, device="cpu", replicas=2)
    assert not new_children()
