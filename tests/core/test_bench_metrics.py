"""Latencies and rates on scripted times: each test is a mistake that some benchmark tool had to fix."""

import gc
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from minfer.bench.contestants import EngineContestant
from minfer.bench.figures import figures
from minfer.bench.runner import Series, interleave
from minfer.bench.sample import Sample
from minfer.bench.workloads import Request, Workload, batch
from minfer.core.errors import RequestError
from minfer.core.params import SamplingParams
from minfer.course.lab.tiny import tiny_model

QUIET = Console(quiet=True)


def test_the_first_tokens_time_is_no_inter_token_latency():
    assert Sample([[5.0, 5.25, 5.75], [1.0]], 9.0).itls == [0.25, 0.5]


def test_a_request_ends_with_its_last_token_and_not_with_the_run():
    made = figures([Sample([[1.0, 2.0], [1.0, 4.0]], duration=10.0)], 7)
    assert (made["mean_e2el_ms"], made["p99_e2el_ms"]) == (3000, 4000)
    assert made["output_throughput"] == pytest.approx(0.4)
    assert made["total_token_throughput"] == pytest.approx((7 + 4) / 10)


def test_end_to_end_is_the_first_token_and_the_time_of_all_others():
    sample = Sample([[0.5, 0.75, 1.5, 2.0], [1.0, 4.0], [3.0]], 5.0)
    for number, times in enumerate(sample.token_times[:2]):
        others = (len(times) - 1) * sample.tpots[number]
        assert sample.e2es[number] == pytest.approx(sample.ttfts[number] + others)
    assert sum(sample.itls) == pytest.approx(sum(sample.e2es) - sum(sample.ttfts))


def test_one_token_gives_no_time_per_token_and_does_not_spoil_the_mean():
    made = figures([Sample([[1.0], [1.0, 3.0]], 4.0)], 2)
    assert made["mean_tpot_ms"] == 2000
    alone = figures([Sample([[1.0]], 4.0)], 2)
    assert not any("tpot" in name or "itl" in name for name in alone)


def test_requests_that_waited_are_seen_beside_a_mean_that_dilutes_them():
    quick = [[0.1, 0.2]] * 99
    made = figures([Sample([*quick, [9.0, 9.1]], 10.0, waits=[0.0] * 99 + [8.9])], 100)
    assert made["median_ttft_ms"] == pytest.approx(100)
    assert made["p99_ttft_ms"] > 150  # the one that waited is beyond it, and pulls it
    assert made["p99_queue_ms"] > made["median_queue_ms"] == 0


def test_a_percentile_of_few_values_is_their_maximum():
    assert figures([Sample([[0.1], [0.2], [0.9]], 1.0)], 3)["p99_ttft_ms"] == pytest.approx(900)


def test_peak_throughput_counts_whole_seconds_not_the_shortest_gap():
    assert Sample([[0.9, 1.0, 1.01, 1.02, 2.5]], 3.0).peak_throughput == 3


def test_a_request_that_begins_when_another_ends_is_not_beside_it():
    sample = Sample([[1.0, 2.0], [2.5, 3.0], [1.5]], 3.0, waits=[0.0, 2.0, 1.0])
    assert sample.peak_concurrency == 2
    assert Sample([[1.0], [2.0], [3.0]], 3.0).peak_concurrency == 3  # nothing is known of a queue: all at once


def test_prompts_share_no_beginning_so_no_prefix_is_found():
    requests = batch(4096, 32, 16, 8).requests
    assert len({tuple(request.prompt_ids[:4]) for request in requests}) == len(requests)


def test_every_request_says_how_it_draws_and_has_all_its_tokens():
    for request in batch(4096, 8, 16, 8).requests:
        assert (request.params.temperature, request.params.ignore_eos) == (0, True)
    made = batch(4096, 64, 16, 8).requests
    assert {len(request.prompt_ids) for request in made} == set(range(8, 25))
    assert {request.params.max_tokens for request in made} == set(range(4, 13))


def test_prompts_are_ids_so_that_no_tokenizer_changes_their_length():
    work = batch(17, 3, 6, 2)
    contestant = EngineContestant(4, tiny_model("llama", 17).module(), max_batch=1)
    sample = contestant.run(work)
    fed = work.input_tokens + work.output_tokens - len(work.requests)
    assert sample.facts["tokens_fed"] == fed  # max_batch = 1: no padding


def test_the_wall_clock_may_jump(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)
    contestant = EngineContestant(5, tiny_model("llama", 17).module(), num_blocks=16)
    sample = contestant.run(batch(17, 2, 4, 3))
    assert all(0 < earlier < later for times in sample.token_times for earlier, later in pairwise(times))


def test_a_queue_shows_in_ttft_and_is_told_apart():
    contestant = EngineContestant(5, tiny_model("llama", 17).module(), num_blocks=16, max_batch=1)
    sample = contestant.run(batch(17, 3, 4, 3))
    assert sample.waits == sorted(sample.waits)
    assert all(wait < first for wait, first in zip(sample.waits, sample.ttfts, strict=True))
    assert sample.waits[1] >= sample.e2es[0]
    assert sample.peak_concurrency == 1


class Scripted:
    """A contestant of prescribed runs."""

    def __init__(self, name, *answers):
        self.name, self.answers = name, list(answers)

    def run(self, workload):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_failed_run_is_no_result_and_the_others_go_on():
    good, short = Sample([[1.0]], 1.0), RuntimeError("request 0 gave 0 tokens of 1")
    kept = []
    state = Series(keep=lambda: kept.append(1))
    contestants = [Scripted("good", good, good, good), Scripted("bad", good, good, short)]
    samples = interleave(contestants, Workload("w", "", []), 2, QUIET, state)
    assert samples == {"good": [good, good]}
    assert state.failed == {"bad": "failed: request 0 gave 0 tokens of 1"}
    assert len(kept) == 4  # three good runs, and the failure
    with pytest.raises(RuntimeError, match="gave 0 tokens"):
        interleave([Scripted("bad", good, short)], Workload("w", "", []), 1, QUIET)


@pytest.mark.parametrize("broken", [RuntimeError("no"), RequestError("no")])
def test_who_fails_in_the_warm_up_never_counts(broken):
    state = Series()
    assert interleave([Scripted("bad", broken)], Workload("w", "", []), 3, QUIET, state) == {}
    assert state.failed == {"bad": "failed: no"}


def test_a_series_goes_on_where_it_was_interrupted():
    done, new = Sample([[1.0]], 1.0), Sample([[2.0]], 2.0)
    state = Series({"a": [done, done], "b": [done]})
    contestants = [Scripted("a"), Scripted("b", new, new)]  # whoever is complete is not even warmed up
    assert interleave(contestants, Workload("w", "", []), 2, QUIET, state) == {"a": [done, done], "b": [done, new]}


def test_no_garbage_is_collected_from_what_was_there_before():
    frozen = []
    watching = SimpleNamespace(name="a", run=lambda workload: frozen.append(gc.get_freeze_count()) or Sample([], 1.0))
    interleave([watching], Workload("w", "", []), 1, QUIET)
    assert min(frozen) > 10_000
    assert gc.get_freeze_count() == 0


def test_an_empty_answer_is_a_failure_of_every_contestant():
    module = tiny_model("llama", 17).module(torch.float64)
    first = EngineContestant(5, module, num_blocks=8).engine.generate([[5, 6]], SamplingParams(max_tokens=1))[0]
    ends = SamplingParams(max_tokens=2, stop_token_ids=first.token_ids)
    state = Series()
    work = Workload("w", "", [Request([5, 6], ends)])
    assert interleave([EngineContestant(5, module, num_blocks=8)], work, 1, QUIET, state) == {}
    assert "request 0 gave 1 tokens of 2" in state.failed["phase 5"]
