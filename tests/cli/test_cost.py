"""`minfer predict`, `calibrate`, `bench table`, `bench sweep` and `why`, as their users run them."""

import json

import pytest

from minfer.bench import anatomy, ledger, probes
from minfer.calibration import calibrate, real_steps
from minfer.core.measures import bandwidth
from minfer.cost.hardware import calibrated_path, find_hardware
from tests.cost.test_why import FIRST, SECOND, table

SMALL = ("--num-prompts", "2", "--input-len", "4", "--output-len", "4", "--repeats", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Probes and real steps of few and small sizes, once."""
    small = {"BATCH": 2, "EACH": 2, "PROMPTS": (20,), "WIDE": (2, 40), "MANY": (3, 4), "LAST": 1}
    for name, value in small.items():
        monkeypatch.setattr(real_steps, name, value)
    monkeypatch.setattr(calibrate, "PASSES", 1)
    monkeypatch.setattr(probes, "LEAST", 1e-6)
    monkeypatch.setattr(probes, "READING", 2**12)
    monkeypatch.setattr(bandwidth, "NBYTES", 2**12)
    monkeypatch.setattr(anatomy, "PROBE_LAYERS", 1)


def test_predict_shows_parts_a_bound_and_the_published_figure(run):
    asked = ("predict", "-m", "random:llama2-7b", "--hardware", "a100-80gb", "--dtype", "int8")
    done = run(*asked)
    assert done.code == 0
    assert "published: 155.58 tokens/s, predicted 16" in done.out
    assert "62% of a decode step is weights read" in done.out
    assert "published" not in run(*asked, "--batch", "2").out
    everything = run("predict", "--published").out
    assert all(figure in everything for figure in ("25.5", "104.9", "155.58", "196.8"))


def test_predict_says_what_is_missing(run):
    assert "run minfer calibrate" in run("predict").err
    assert "is neither known nor a file" in run("predict", "--hardware", "abacus").err
    assert "less than or equal to 512" in run("predict", "--hardware", "h100", "--batch", "9" * 20).err
    long = run("predict", "--hardware", "h100", "--input-len", "9000")
    assert "--input-len 9000 and --output-len 200 are 9200 tokens" in long.err


def test_calibrate_leaves_rates_that_predict_and_the_table_use(run, folder, tmp_path):
    done = run("calibrate", "-m", folder, "--ranks", "1", "--device", "cpu")
    assert done.code == 0
    assert "GB/s" in done.out
    made = find_hardware(None)
    assert {"float32", "bfloat16", "int8", "int4-g32", "fp8", "float32, fused"} <= made.engines.keys()
    assert "in all" in run("predict", "-m", folder, "--input-len", "4", "--output-len", "4").out
    rows = ("--only", "FP32", "--only", "CUDA", "--only", "Batched")
    done = run("bench", "table", "-m", folder, *SMALL, *rows, "--out", "t.json")
    assert done.code == 0, done.err
    found = ledger.load(tmp_path / "t.json")
    names = {row["name"]: row for row in found["parts"][0]["rows"]}
    assert list(names) == ["FP32", "Batched", "CUDA graph"]
    assert names["CUDA graph"]["absent"] == "no CUDA device: a CPU has no graphs"
    assert names["FP32"]["quality"]["match"] == names["FP32"]["quality"]["of"]
    assert names["FP32"]["figures"]["completed"] == 2
    assert names["FP32"]["predicted"]["output_throughput"] > 0
    assert "n/a (no CUDA device" in run("bench", "show", "t.json").out
    assert "weights read" in run("why", "--ledger", "t.json").out
    assert "FP32 → Batched" in run("why", "fp32", "batched", "--ledger", "t.json").out
    assert calibrated_path().is_file()


def test_an_interrupted_table_goes_on_and_a_finished_or_another_one_is_not_touched(run, folder, tmp_path):
    asked = ("bench", "table", "-m", folder, *SMALL, "--only", "FP32", "--out", "t.json")
    assert run(*asked).code == 0
    made = json.loads((tmp_path / "t.json").read_text())
    assert "is finished" in run(*asked).err
    assert "name another file" in run(*asked, "--seed", "5").err
    kept = made["parts"][0]["rows"][0]["samples"]
    made["finished"] = False
    del made["parts"][0]["rows"][0]["figures"]
    (tmp_path / "t.json").write_text(json.dumps(made))
    done = run(*asked)
    assert "going on with t.json" in done.err
    again = ledger.load(tmp_path / "t.json")
    assert again["parts"][0]["rows"][0]["samples"] == kept
    assert again["finished"]


def test_a_table_checks_what_is_asked_before_it_runs(run, folder):
    assert "'zz' is no row: choose from FP32" in run("bench", "table", "-m", folder, *SMALL, "--only", "zz").err
    assert "are more than" in run("bench", "table", "-m", folder, "--input-len", "4000").err
    assert "there is no folder" in run("bench", "table", "--out", "nowhere/t.json").err


def test_why_says_and_draws_what_differs(run, tmp_path):
    pytest.importorskip("matplotlib")
    made = {**table(FIRST, SECOND), "schema": ledger.SCHEMA, "model": "scripted"}
    (tmp_path / "table.json").write_text(json.dumps(made))
    done = run("why", "fp32", "int8", "--picture", "w.png")
    assert done.code == 0, done.err
    assert "FP32 → INT8: 235.00 → 125.00 ms per output token" in done.out
    assert (tmp_path / "w.png").stat().st_size > 10_000
    assert "one row alone" in run("why", "fp32").err
    assert "names 0 rows" in run("why", "fp32", "fp9").err
    assert "is not a ledger" in run("why", "--ledger", "none.json").err


def test_a_sweep_is_drawn_with_its_timeline(run, folder, tmp_path):
    pytest.importorskip("matplotlib")
    asked = ("--max-concurrency", "3", "--input-len", "4", "--output-len", "4", "--repeats", "1", "--device", "cpu")
    done = run("bench", "sweep", "-m", folder, *asked, "--figure", "s.png", "--timeline", "t.png", "--out", "s.json")
    assert done.code == 0, done.err
    assert [part["batch"] for part in ledger.load(tmp_path / "s.json")["parts"]] == [1, 2, 3]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("s.png", "t.png"))
    assert "cannot draw" in run("bench", "sweep", "--figure", "s.txt").err
