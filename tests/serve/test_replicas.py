"""Replicas behind a server: what it shows, counts and steers is of all of them, not of the first alone."""

import time
from contextlib import contextmanager
from functools import partial

import pytest
from rich.console import Console

from minfer import Engine
from minfer.serve import live
from minfer.serve.policy import Aim, Policy
from minfer.serve.top import fetch, screen
from tests.serve.serving import serving, until

pytestmark = pytest.mark.usefixtures("patient")

BLOCKS, BLOCK, PROMPT = 300, 4, 40
COMPLETIONS = "/v1/completions"
PAUSE = 0.03


class Paused:
    """Takes an attendant's steps, each after a pause: so there is time to look."""

    def __init__(self, attendant, pause):
        self.attendant, self.pause = attendant, pause
        self.snapshot, self.history = attendant.snapshot, attendant.history

    def step(self):
        self.pause()
        return self.attendant.step()


def slow_down(served, seconds):
    """A question to a replica, after which it is slow."""
    served.stepper = Paused(served.stepper, partial(time.sleep, seconds))


def hold(served, flag):
    """A question to a replica, after which it takes no step before a file is there."""

    def pause():
        while not flag.exists():
            time.sleep(0.01)

    served.stepper = Paused(served.stepper, pause)


def limits_of(served):
    """A question to a replica: the most rows that its scheduler may start now."""
    return served.engine.scheduler.limits.max_batch


@pytest.fixture(scope="module")
def pair(folder):
    """An engine of two replicas, each with two rows."""
    options = {"max_batch": 2, "graph_batch": 0, "num_blocks": BLOCKS, "block_size": BLOCK, "token_budget": 64}
    engine = Engine.load(str(folder), device="cpu", dtype="float64", compiler="none", replicas=2, **options)
    yield engine
    engine.close()


class Pair:
    """A server in front of two replicas, and what it says of them."""

    def __init__(self, own):
        self.own, self.thread = own, own.service.engines[0]
        self.replica = self.thread.engine.replicas.all[0]

    def slots(self):
        return self.own.ask("GET", "/slots")[2]

    def metrics(self):
        lines = self.own.ask("GET", "/metrics")[2].decode().splitlines()
        return {line.split("{")[0]: float(line.split()[-1]) for line in lines if not line.startswith("#")}


@contextmanager
def loaded(pair, count, **settings):
    """`count` requests that do not end meanwhile, at replicas that pause; afterwards every block of both is free."""
    with serving(pair, **settings) as own:
        made = Pair(own)
        made.thread.attendant = Paused(made.thread.attendant, partial(time.sleep, PAUSE))
        made.replica.ask(partial(slow_down, seconds=PAUSE))
        asked = {"max_tokens": 900, "ignore_eos": True, "stream": True}
        connections = [own.open(COMPLETIONS, prompt=[5 + n] * PROMPT, **asked) for n in range(count)]
        yield made
        for connection in connections:
            connection.close()
        own.all_free()
        until(lambda: [one["blocks"]["free"] for one in made.slots()] == [BLOCKS, BLOCKS])
        assert made.metrics()["minfer:kv_blocks_free"] == 2 * BLOCKS


def rows(slots):
    return [len(one["slots"]) for one in slots]


def used(slots):
    return sum(one["blocks"]["used"] for one in slots)


def test_slots_and_metrics_are_of_all(pair):
    """Six requests for four rows: each look at both replicas lies between the one before and the one after."""
    with loaded(pair, 6) as two:
        until(lambda: rows(two.slots()) == [2, 2] and sum(len(one["waiting"]) for one in two.slots()) == 2)
        before = two.slots()
        time.sleep(0.25)  # longer than a look is shown again
        metrics = two.metrics()
        time.sleep(0.25)
        after = two.slots()
    assert [[row["replica"] for row in one["slots"]] for one in before] == [[0, 0], [1, 1]]
    assert len({row["id"] for one in before for row in one["slots"]}) == 4
    for one in before:
        assert {owner for owner in one["blocks"]["map"] if owner >= 0} == {row["id"] for row in one["slots"]}
        assert [row["slot"] for row in one["slots"]] == [0, 1]
    assert metrics["minfer:num_requests_running"] == 4
    assert metrics["minfer:num_requests_waiting"] == 2
    assert metrics["minfer:engines_ready"] == 2
    assert metrics["minfer:kv_blocks_total"] == 2 * BLOCKS
    held = metrics["minfer:kv_blocks_total"] - metrics["minfer:kv_blocks_free"]
    assert 4 * PROMPT / BLOCK < used(before) <= held <= used(after)
    assert metrics["minfer:kv_cache_usage_perc"] == pytest.approx(held / (2 * BLOCKS))


def test_the_live_view_and_the_terminal_show_each_replica(pair):
    with loaded(pair, 3) as two:
        until(lambda: sum(rows(two.slots())) == 3)
        until(lambda: all(one["steps"] for one in fetch(two.own.url, None)["engines"]))
        seen = fetch(two.own.url, None)
        console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(screen(seen))
        text = console.export_text()
    for one in seen["engines"]:
        assert {row[1] for step in one["steps"][-1:] for row in step[5]} <= {row["id"] for row in one["slots"]}
        assert one["memory"]["weights"] == seen["engines"][0]["memory"]["weights"] > 0
        assert one["memory"]["runtime"] > 0
    assert "1 of 2 rows" in text
    for said in ("replica 0: batch rows", "replica 1: batch rows", "replica 0: blocks"):
        assert said in text


def test_the_policy_steers_each_replica(pair):
    with loaded(pair, 4, policy=Policy(Aim.LATENCY, rows=1, prompt_tokens=5)) as two:
        until(lambda: [len(one["waiting"]) for one in two.slots()] == [1, 1])
        seen = [two.slots() for _ in range(3)]
        assert two.replica.ask(limits_of) == 1
    assert [rows(one) for one in seen] == [[1, 1]] * 3


def test_auto_counts_the_requests_of_each_replica(pair):
    with loaded(pair, 3, policy=Policy(Aim.AUTO, rows=1, prompt_tokens=5)) as two:
        until(lambda: sorted(rows(two.slots())) == [1, 2])
        small = {len(one["slots"]): one["small"] for one in two.slots()}
        assert fetch(two.own.url, None)["policy"] == {"aim": "auto", "small": False}
    assert small == {1: True, 2: False}


def test_a_look_at_a_replica_waits_for_its_step_and_holds_nobody_else_up(pair, monkeypatch, tmp_path):
    monkeypatch.setattr(live, "PATIENCE", 0.1)
    with loaded(pair, 2) as two:
        until(lambda: rows(two.slots()) == [1, 1])
        two.replica.ask(partial(hold, flag=tmp_path / "go"))
        until(lambda: two.slots()[1]["age_s"] > 2 * live.FRESH)  # asked for, and shown as it was seen last
        steps = two.thread.attendant.history.count
        until(lambda: two.thread.attendant.history.count > steps + 5)
        (tmp_path / "go").touch()
        until(lambda: two.slots()[1]["age_s"] < live.FRESH)


def test_ages_are_since_the_client_came(pair):
    with loaded(pair, 2) as two:
        until(lambda: rows(two.slots()) == [1, 1])
        (given,) = two.replica.given.values()
        given.sequence.timestamps.arrived -= 1000
        until(lambda: two.slots()[1]["slots"][0]["age_s"] > 1000)


def test_what_a_replica_finds_in_its_cache_is_counted(pair):
    """The second time both replicas know the prompt, whoever gets it."""
    with serving(pair) as own:
        asked = {"prompt": [[9] * PROMPT] * 2, "max_tokens": 2, "ignore_eos": True}
        own.post(COMPLETIONS, **asked)
        usage = own.post(COMPLETIONS, **asked)[2]["usage"]
        own.all_free()
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2 * (PROMPT - BLOCK)


def test_a_replica_that_is_gone_is_shown_as_dead_and_no_longer_counted(pair, monkeypatch):
    with serving(pair) as own:
        two = Pair(own)
        assert [one["state"] for one in two.slots()] == ["ready", "ready"]
        assert two.metrics()["minfer:kv_blocks_total"] == 2 * BLOCKS
        monkeypatch.setattr(two.replica.process, "error", "it failed")
        assert [one["state"] for one in two.slots()] == ["ready", "dead"]
        assert own.ask("GET", "/health")[::2] == (503, {"status": "dead"})
        seen = two.metrics()
    assert (seen["minfer:engines_ready"], seen["minfer:kv_blocks_total"]) == (1, BLOCKS)
