"""The load generator against a server, and what it makes of what its clients saw; overload in short."""

import asyncio
import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from minfer.bench.load import Plan, Result, random_prompts, report, run
from minfer.cli import main
from minfer.phase11.limits import Limits
from minfer.serve import mail
from tests.serve.serving import NAME, PATIENCE, engine_of, serving, until

EXTRA = {"ignore_eos": True, "stream_options": {"include_usage": True}}


def letters(count, length, seed=0):
    return [[1 + token % 29 for token in prompt] for prompt in random_prompts(count, length, seed)]


def test_figures_by_their_formulas():
    """Two requests by hand: tokens at 1, 2, 4 and at 3; sent at 0 and 2."""
    results = [Result(0.0, [1.0, 2.0, 4.0], "", 200, "", 5), Result(2.0, [3.0], "", 200, "", 7), Result(status=429)]
    made = report(results, Limits(ttft=1.0))
    assert (made["completed"], made["failed"], made["refused"]) == (2, 1, 1)
    assert (made["duration"], made["total_input_tokens"], made["total_output_tokens"]) == (4.0, 12, 4)
    assert (made["output_throughput"], made["request_throughput"]) == (1.0, 0.5)
    assert (made["median_ttft_ms"], made["mean_tpot_ms"], made["mean_itl_ms"]) == (1000, 1500, 1500)
    assert made["mean_e2el_ms"] == (4000 + 1000) / 2
    assert made["request_goodput"] == 0.5
    assert report(results, Limits(ttft=1.0, tpot=9.0))["request_goodput"] == 0.25, "one token shows no TPOT"
    assert report([Result(status=500)])["output_throughput"] == 0.0


def test_it_counts_what_the_server_says(engine):
    with serving(engine) as own:
        plan = Plan(own.url, NAME, letters(12, 9), 7, max_concurrency=5, extra=EXTRA)
        results = asyncio.run(run(plan))
        made = report(results)
        alone = [own.complete(prompt, max_tokens=7, ignore_eos=True)["text"] for prompt in plan.prompts]
        own.all_free()
    assert (made["completed"], made["total_output_tokens"], made["total_input_tokens"]) == (12, 84, 108)
    assert [result.text for result in results] == alone
    assert all(math.isfinite(made[name]) for name in made)


def test_requests_come_at_the_rate_whatever_the_seed():
    for seed in range(3):
        plan = Plan("http://127.0.0.1:9", NAME, [[1]] * 20, 1, request_rate=100.0, seed=seed)
        results = asyncio.run(run(plan))
        sent = [result.sent for result in results]
        assert sent == sorted(sent)
        assert sent[-1] - sent[0] > 0.1
        assert all("Error" in result.error for result in results), "nobody listens there"


def test_too_many_are_refused_and_nobody_fails(module, tokenizer):
    """More at once than are let in: each is answered in full, or told 429; afterwards every block is free."""
    engine = engine_of(module, tokenizer)
    with serving(engine, max_requests=20) as own, ThreadPoolExecutor(1) as clients:
        engine.hold()  # a quick engine could be done with the first before the last have come
        answered = clients.submit(asyncio.run, run(Plan(own.url, NAME, letters(60, 12), 20, extra=EXTRA)))
        until(lambda: own.service.admission.rejected)
        engine.free()
        results = answered.result()
        own.all_free()
    assert {result.status for result in results} == {200, 429}
    for result in results:
        assert len(result.times) == (20 if result.status == 200 else 0)
    assert report(results)["completed"] >= 20


def test_on_a_cpu_a_step_waits_until_the_event_loop_has_written_but_not_for_long(engine, monkeypatch):
    with serving(engine) as own:
        connection = own.open("/v1/completions", prompt="abc", max_tokens=900, stream=True, ignore_eos=True)
        connection.recv(4096)
        thread = own.service.engines[0]
        (seen,) = thread.seen.values()
        with monkeypatch.context() as patched:
            patched.setattr(mail, "LONGEST_PAUSE", PATIENCE)
            busy = keep_busy(seen.call.loop)
            steps = thread.attendant.history.count
            time.sleep(0.2)  # the step in hand ends, and perhaps one whose tokens were written before
            assert thread.attendant.history.count <= steps + 2
            busy.set()
        steps = thread.attendant.history.count
        until(lambda: thread.attendant.history.count > steps + 1)  # no step is left that waits so long
        busy = keep_busy(seen.call.loop)
        steps = thread.attendant.history.count
        until(lambda: thread.attendant.history.count > steps + 5)
        busy.set()
        connection.close()


def keep_busy(loop):
    """The event loop does nothing from now on, until what is returned is set."""
    begun, ended = threading.Event(), threading.Event()
    loop.call_soon_threadsafe(lambda: (begun.set(), ended.wait(PATIENCE)))
    assert begun.wait(PATIENCE)
    return ended


def test_the_commands(engine, capsys, tmp_path):
    out = tmp_path / "figures.json"
    with serving(engine) as own:
        asked = ["--input-len", "3", "--output-len", "4", "--num-prompts", "3"]
        code = main(["bench", "serve", "--base-url", own.url, *asked, "--save-result", str(out)])
        assert code == 2, "ids that this small vocabulary does not have"
        assert "token id" in capsys.readouterr().err
    assert main(["bench", "engine", "--phase", "5", *asked, "--save-result", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert (figures["completed"], figures["total_output_tokens"]) == (3, 12)
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *asked]) == 2
    assert "no server at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_chat_is_no_place_for_token_ids(capsys):
    assert main(["bench", "serve", "--endpoint", "/v1/chat/completions", "--model", "x"]) == 2
    assert "use /v1/completions" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [0, 1])
def test_no_two_prompts_begin_alike(seed):
    prompts = random_prompts(300, 16, seed)
    assert len({tuple(prompt) for prompt in prompts}) == 300
    assert prompts == random_prompts(300, 16, seed) != random_prompts(300, 16, seed + 2)
