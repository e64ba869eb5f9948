"""Figures: definitions on scripted times, tables made from ledgers, and the README's table made from its own."""

import json
from pathlib import Path

import pytest

from minfer.bench import ledger, table
from minfer.bench.contestants import EngineContestant
from minfer.bench.readme import BEGIN, END, inserted, marks
from minfer.bench.sample import Sample, Spread
from minfer.bench.workloads import Request, Workload, mixed, shared_prefix, single
from minfer.core.errors import MinferError
from minfer.core.params import SamplingParams
from minfer.course.lab.tiny import tiny_model

ROOT = Path(__file__).parents[2]


def test_ttft_tpot_and_throughput_on_scripted_times():
    sample = Sample(token_times=[[0.5, 0.7, 1.1], [2.0]], duration=4.0)
    assert sample.output_throughput == 1.0
    assert sample.ttft_ms == pytest.approx(1250)
    assert sample.tpot_ms == pytest.approx(300)  # (1.1 - 0.5) / 2: the first token is not in it, nor the request of one


def test_a_request_of_one_token_has_no_tpot():
    assert str(Sample([[0.5]], 1.0).tpot_ms) == "nan"


def test_a_spread_is_least_median_greatest():
    assert str(Spread.of([3.0, 1.0, 2.0])) == "2.00 (1.00–3.00)"
    assert str(Spread.of([250.0, 250.0])) == "250"


def test_workloads_are_the_same_each_time_and_have_the_lengths_they_say():
    assert mixed(100) == mixed(100)
    assert all(16 <= len(r.prompt_ids) <= 128 and 16 <= r.params.max_tokens <= 128 for r in mixed(100).requests)
    assert single(100).output_tokens == 128
    prefixes = {tuple(request.prompt_ids[:256]) for request in shared_prefix(100).requests}
    assert (len(prefixes), len(shared_prefix(100).requests)) == (1, 16)


@pytest.mark.parametrize("phase", [1, 3, 4, 5])
def test_a_contestant_counts_the_tokens_that_it_computes(phase):
    requests = [Request([5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True))]
    contestant = EngineContestant(phase, tiny_model("llama", 17).module())
    for _ in range(2):  # a second run profits from nothing that the first left
        sample = contestant.run(Workload("one", "", requests))
        assert sample.facts["tokens_fed"] == (3 + 4 + 5 + 6 if phase == 1 else 3 + 3)
        assert len(sample.token_times[0]) == 4


def test_a_short_answer_is_never_counted_as_a_fast_one():
    module = tiny_model("llama", 17).module()
    (first,) = EngineContestant(3, module).engine.generate([[5, 6, 7]], SamplingParams(max_tokens=1))
    stopping = SamplingParams(max_tokens=4, stop_token_ids=first.token_ids)
    with pytest.raises(RuntimeError, match="request 0 gave 1 tokens of 4"):
        EngineContestant(3, module).run(Workload("one", "", [Request([5, 6, 7], stopping)]))


def test_a_ledger_is_read_back_as_written_and_others_are_refused(tmp_path):
    made = {"schema": ledger.SCHEMA, "parts": [ledger.entry(single(100), {"x": [Sample([[0.25]], 1.0)]})]}
    ledger.save(tmp_path / "l.json", made)
    assert ledger.load(tmp_path / "l.json") == made
    assert ledger.runs(made["parts"][0]["rows"][0]) == [Sample([[0.25]], 1.0)]
    (tmp_path / "l.json").write_text("[" * 100_000)
    with pytest.raises(MinferError, match=r"is not a ledger .*recursion"):
        ledger.load(tmp_path / "l.json")
    (tmp_path / "l.json").write_text("{}")
    with pytest.raises(MinferError, match=r"is not a ledger of schema minfer\.bench/1"):
        ledger.load(tmp_path / "l.json")
    row = {"name": "x", "samples": [{"duration": 1.0}]}
    for damaged in ({}, {"parts": 7}, {"parts": [{}]}, {"parts": [{"rows": [row]}]}, {"parts": [{"rows": [{}]}]}):
        (tmp_path / "l.json").write_text(json.dumps({"schema": ledger.SCHEMA, **damaged}))
        with pytest.raises(MinferError, match=r"l\.json is a damaged ledger, or of another version \(.*measure again"):
            ledger.load(tmp_path / "l.json")


def test_a_table_goes_between_its_marks_and_nowhere_else():
    assert inserted(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\n\nnew\n\n{END}\nb"
    with pytest.raises(MinferError, match="no place for the table"):
        inserted("a", "new")


def test_each_kind_of_ledger_has_a_place_of_its_own():
    first, last = marks("table")
    document = f"{BEGIN}\nold\n{END}\n"
    assert inserted(f"{document}{first}{last}", "new", "table") == f"{document}{first}\n\nnew\n\n{last}"


def test_the_readmes_table_is_made_from_the_ledger_beside_the_lessons():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert inserted(readme, table.markdown(ledger.load(ROOT / "phases" / "bench-phases.json"))) == readme


def test_the_readmes_full_table_is_made_from_its_ledger_once_there_is_one():
    readme, made = (ROOT / "README.md").read_text(encoding="utf-8"), ROOT / "phases" / "bench-table.json"
    text = table.markdown(ledger.load(made)) if made.exists() else ""
    assert inserted(readme, text, "table").split() == readme.split()
