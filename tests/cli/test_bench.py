"""`minfer bench`: what it takes, writes and shows again; its figures are tested in tests/core."""

from minfer.bench import ledger


def test_fast_writes_a_ledger_that_show_prints_and_that_is_gone_on_with_until_it_is_finished(run, tmp_path):
    asked = (
        "bench",
        "fast",
        "-m",
        "tiny",
        "--repeats",
        "1",
        "--only",
        "phase 5",
        "--only",
        "decode-1",
        "--only",
        "phase 8",
    )
    done = run(*asked, "--device", "cpu", "--out", "l.json")
    assert done.code == 0
    made = ledger.load(tmp_path / "l.json")
    assert [part["workload"] for part in made["parts"]] == ["decode-1"]
    assert [row["name"] for row in made["parts"][0]["rows"]] == ["phase 5 fp32", "phase 8 fp32"]
    assert made["ran"].keys() == {"phase 5 fp32"}
    assert made["command"].endswith("--only 'phase 5' --only 'decode-1' --only 'phase 8'")
    shown = run("bench", "show", "l.json")
    assert shown.code == 0
    for said in (
        "1 request at once, 32 tokens in, 48 out",
        "phase 5 fp32",
        "phase 8 fp32: n/a (no CUDA device)",
        "between",
    ):
        assert said in done.out  # figures may differ in their last digit: a ledger has six
        assert said in shown.out
    assert "is finished" in run(*asked, "--device", "cpu", "--out", "l.json").err
    kept = made["parts"][0]["rows"][0]["samples"]
    made["finished"] = False
    ledger.save(tmp_path / "l.json", made)
    assert "it is not finished" in run("bench", "show", "l.json").out
    done = run(*asked, "--device", "cpu", "--out", "l.json")
    assert done.code == 0
    assert "minfer: going on with l.json" in done.err
    assert ledger.load(tmp_path / "l.json")["parts"][0]["rows"][0]["samples"] == kept


def test_what_is_asked_of_a_benchmark_is_checked_before_it_runs(run):
    assert "is neither a row nor a workload" in run("bench", "fast", "--only", "phase 99").err
    gone = run("bench", "fast", "--out", "nowhere/l.json")
    assert (gone.code, gone.err) == (2, "minfer: error: --out nowhere/l.json: there is no folder nowhere\n")
