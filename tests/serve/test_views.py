"""What a server says of itself: metrics, slots, the live view, and the same in a terminal."""

import math
import re
import socket

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from rich.console import Console

from minfer.core.errors import OptionsError, RequestError
from minfer.phase11.limits import PRESETS, Limits
from minfer.serve.metrics import Tally
from minfer.serve.slo import parse_slo
from minfer.serve.top import fetch, screen
from tests.serve.serving import engine_of, serving, until

COMPLETIONS = "/v1/completions"
ASKED = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def metrics_of(own):
    """Every sample of /metrics: name (with labels but the model's) -> value."""
    text = own.ask("GET", "/metrics")[2].decode()
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[re.sub(r',?model_name="letters",?', "", name).replace("{}", "")] = float(value)
    return found


def test_metrics_count_what_was_served(engine):
    with serving(engine) as own:
        before = metrics_of(own)
        assert before["minfer:num_requests_running"] == before["minfer:generation_tokens_total"] == 0
        own.complete(**ASKED)
        own.stream(COMPLETIONS, **{**ASKED, "max_tokens": 1})
        prompt = len(own.post("/tokenize", prompt="abc")[2]["tokens"])
        engine.hold()
        connection = own.open(COMPLETIONS, **{**ASKED, "max_tokens": 100})
        until(lambda: own.service.engines[0].seen)
        engine.let(2)
        until(lambda: own.service.figures.total_tokens >= 11)
        during = metrics_of(own)
        connection.close()
        until(lambda: own.service.admission.requests == 0)  # or it could end before anybody has noticed
        engine.free()
        own.all_free()
        after = metrics_of(own)
    assert during["minfer:num_requests_running"] == 1
    assert 0 < during["minfer:kv_cache_usage_perc"] < 1
    assert after["minfer:num_requests_running"] == after["minfer:kv_cache_usage_perc"] == 0
    assert after["minfer:prompt_tokens_total"] == 3 * prompt
    assert after["minfer:generation_tokens_total"] >= 11
    assert after['minfer:request_success_total{finished_reason="length"}'] == 2
    assert after['minfer:request_success_total{finished_reason="abort"}'] == 1
    assert after["minfer:time_to_first_token_seconds_count"] == after["minfer:e2e_request_latency_seconds_count"] == 2
    assert after["minfer:request_time_per_output_token_seconds_count"] == 1, "one token has no time per token"
    assert during["minfer:inter_token_latency_seconds_count"] == 7 + 1
    assert after["minfer:prefix_cache_queries_total"] == 3 * prompt
    assert after["minfer:kv_blocks_free"] == after["minfer:kv_blocks_total"] == 600
    for name in ("request_queue_time_seconds", "request_prompt_tokens", "request_generation_tokens"):
        assert f"minfer:{name}_sum" in after
    assert after["minfer:engines_ready"] == 1


def test_a_tally_is_told_as_the_histogram_of_the_library_is():
    bounds, values = (0.5, 1, 2.5), [0, 0.5, 0.6, 1, 2.5, 2.6, 99]
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("minfer:x", "Of it.", ["model_name"], buckets=bounds, registry=theirs)
    tally = Tally("x", "Of it.", bounds, "letters")
    ours.register(tally)
    for value in values:
        histogram.labels("letters").observe(value)
    tally.add(values[:3])
    tally.add(values[3:])
    assert generate_latest(ours) == generate_latest(theirs)


def test_slots_show_what_runs_and_waits_and_which_blocks_it_holds(module, tokenizer):
    engine = engine_of(module, tokenizer, max_batch=2)
    with serving(engine) as own:
        engine.hold()
        connections = [own.open(COMPLETIONS, prompt=[5] * 9, max_tokens=90, ignore_eos=True) for _ in range(3)]
        own.step_until(lambda: len(engine.scheduler.waiting) == 1)
        looks = []

        def looked():  # it is done between two steps, and shown from then on
            engine.let(1)
            looks.extend(own.ask("GET", "/slots")[2])
            return looks[-1]["blocks"]

        until(looked)
        seen = looks[-1]
        engine.free()
        for connection in connections:
            connection.close()
        own.all_free()
    assert [slot["slot"] for slot in seen["slots"]] == [0, 1]
    assert len(seen["waiting"]) == 1
    assert seen["max_batch"] == 2
    blocks = seen["blocks"]
    assert blocks["total"] == 600
    for slot in seen["slots"]:
        assert slot["prompt_tokens"] == 9
        assert {blocks["map"][block] for block in slot["blocks"]} <= {one["id"] for one in seen["slots"]}
        assert len(slot["blocks"]) >= math.ceil(slot["cached_tokens"] / 4)
    assert blocks["used"] + blocks["free"] == 600
    assert sum(owner >= 0 for owner in blocks["map"]) == blocks["used"]
    assert blocks["map"].count(blocks["marks"]["cached"]) == blocks["cached"]
    assert blocks["map"].count(blocks["marks"]["free"]) == blocks["free"] - blocks["cached"]


@pytest.mark.usefixtures("patient")
def test_the_live_view_has_figures_steps_and_memory(engine):
    with serving(engine, slo=Limits(ttft=60.0)) as own:
        for _ in range(3):
            own.complete(**ASKED)
        live = own.ask("GET", "/live")[2]
    figures = live["figures"]
    assert (live["model"], live["phase"], live["status"]) == ("letters", 5, "ok")
    assert (figures["completed"], figures["total_tokens"], figures["met"]) == (3, 24, 1.0)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms"):
        assert 0 < figures[name]["p50"] <= figures[name]["p99"]
    assert figures["e2e_ms"]["p50"] >= figures["ttft_ms"]["p50"] >= figures["queue_ms"]["p50"]
    (seen,) = live["engines"]
    assert len(seen["steps"]) == 24
    kinds = [row[2] for step in seen["steps"] for row in step[5]]
    assert kinds == (["p"] + ["d"] * 7) * 3
    weights = sum(parameter.numel() * parameter.element_size() for parameter in engine.model.parameters())
    assert seen["memory"]["weights"] == weights
    assert seen["memory"]["kv"] == engine.cache.pool.nbytes
    assert seen["memory"]["runtime"] > 0


def test_a_service_that_is_too_slow_is_not_served_well(engine):
    with serving(engine, slo=Limits(ttft=1e-9)) as own:
        own.complete(**ASKED)
        assert own.ask("GET", "/live")[2]["figures"]["met"] == 0.0


@pytest.mark.usefixtures("patient")
def test_a_slot_is_given_again_and_no_two_share_one(module, tokenizer):
    engine = engine_of(module, tokenizer)
    with serving(engine) as own:
        for count in (3, 1, 2):
            own.post(COMPLETIONS, prompt=["abc"] * count, max_tokens=4, ignore_eos=True)
        steps = own.ask("GET", "/live")[2]["engines"][0]["steps"]
    assert {row[0] for step in steps for row in step[5]} == {0, 1, 2}
    for step in steps:
        slots = [row[0] for row in step[5]]
        assert len(slots) == len(set(slots))


def test_the_terminal_shows_the_same(engine):
    with serving(engine, slo=Limits(ttft=60.0)) as own:
        engine.hold()
        connection = own.open(COMPLETIONS, **{**ASKED, "max_tokens": 50})
        until(lambda: own.service.engines[0].seen)
        engine.let(3)
        until(lambda: len(own.service.engines[0].attendant.history.steps) >= 3)
        looks = []

        def looked():  # it is done between two steps, and shown from then on
            engine.let(1)
            looks.append(fetch(own.url, None))
            return looks[-1]["engines"][0]["steps"]

        until(looked)
        live = looks[-1]
        engine.free()
        connection.close()
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(screen(live))
    text = console.export_text()
    for said in ("letters, phase 5", "TTFT", "batch rows", "blocks:", "memory", "served well", "decode", "0 waiting"):
        assert said in text
    assert "█" in text


def test_top_fits_a_terminal_however_much_runs():
    """32 rows, 40 requests that wait, 4096 blocks, one engine or two: all of it is on a screen of 50 lines."""
    spread = {"p50": 2727.8, "p95": 5772.3, "p99": None}
    figures = dict.fromkeys(("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"), spread)
    slots = [
        {"id": n, "slot": n, "prompt_tokens": 32, "output_tokens": n, "blocks": [n], "age_s": n / 3, "phase": "decode"}
        for n in range(32)
    ]
    engine = {
        "state": "ready",
        "max_batch": 32,
        "slots": slots,
        "waiting": [{"age_s": 2.5}] * 40,
        "blocks": {
            "map": [*range(32), *[-8] * 64, *[-9] * 4000],
            "marks": {"free": -9, "cached": -8},
            "used": 32,
            "total": 4096,
            "shared": 0,
            "cached": 64,
        },
        "memory": {"weights": 10**9, "kv": 10**9, "buffers": 10**6, "runtime": 10**8},
        "steps": [[n, 0.1, 0.05, 32, 40, [[row, row, "d"] for row in range(32)]] for n in range(100)],
    }
    live = {
        "model": "letters",
        "phase": 11,
        "uptime_s": 9.0,
        "policy": {"aim": "auto", "small": False},
        "status": "ok",
        "figures": {**figures, "tokens_per_s": 256.0, "requests_per_s": 2.68, "slo": "chat", "met": 0.9},
        "engines": [engine],
    }
    for width in (120, 160):
        text = printed(live, width)
        for said in ("and 16 more rows", "32 of 32 rows, 40 waiting", "a mark stands for", "memory", "32 of 4096 used"):
            assert said in text
        assert "▫" in text.replace("(▫)", "")
        live["engines"] = [{**engine, "replica": number} for number in range(2)]
        text = printed(live, width)
        for said in ("and 24 more rows", "32 of 32 rows, 40 waiting", "replica 1: blocks: 32 of 4096 used"):
            assert said in text
        live["engines"] = [engine]


def printed(live, width):
    """The screen as text; it must not be higher than 50 lines."""
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(screen(live))
    text = console.export_text()
    assert text.count("\n") <= 50
    assert "…" not in text
    return text


def test_top_says_in_one_line_what_is_wrong(engine, unused_port):
    with pytest.raises(RequestError, match=f"no minfer server at http://127.0.0.1:{unused_port}.*minfer serve"):
        fetch(f"http://127.0.0.1:{unused_port}", None)
    with serving(engine, api_key="secret") as own:
        with pytest.raises(RequestError, match="status 401: give its --api-key"):
            fetch(own.url, None)
        assert fetch(own.url, "secret")["status"] == "ok"


@pytest.fixture
def unused_port():
    with socket.socket() as bound:  # and held, so that nobody else gets it; but nobody listens
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_what_a_service_promises_by_name_or_by_numbers():
    assert parse_slo("chat") is PRESETS["chat"]
    assert parse_slo("ttft:500,tpot:50,e2el:5000") == Limits(ttft=0.5, tpot=0.05, e2e=5.0)
    for wrong in ("", "fast", "ttft", "ttft:-1", "ttft:x", "ttfb:5", "ttft:inf"):
        with pytest.raises(OptionsError, match="--slo"):
            parse_slo(wrong)
