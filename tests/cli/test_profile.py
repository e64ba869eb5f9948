"""`minfer profile`: what it prints and writes."""

import gzip
import json

import numpy as np
import pytest

from minfer.core.errors import MinferError
from minfer.phase11.step_log import STEP
from minfer.plots.step_figure import draw_steps


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_profile_shows_latencies_steps_kernels_and_memory(run, folder, tmp_path):
    trace, figure, log = tmp_path / "trace.json.gz", tmp_path / "steps.png", tmp_path / "steps.jsonl"
    files = ("--trace", trace, "--figure", figure, "--step-log", log)
    result = run(
        "profile", "abc", "d", "--model", folder, "--requests", 3, "--max-tokens", 6, "--limits", "chat", *files
    )
    assert result.code == 0
    for shown in ("TTFT", "queue", "prefill", "first sample", "TPOT", "ITL", "E2E", "P99", "goodput", "warm-up"):
        assert shown in result.out
    assert "3 requests in" in result.out
    assert "6 steps in" in result.out  # those that warmed up are forgotten
    assert "within TTFT ≤ 500 ms" in result.out
    for shown in ("schedule", "commit", "(this log)", "fragmentation", "bandwidth", "no such counters", "aten::"):
        assert shown in result.out
    for part in ("weights", "kv", "buffers", "activations", "runtime"):
        assert f"\n{part}" in result.out
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "minfer.step" for event in events) == 6
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert len(log.read_text().splitlines()) == 6 + 6  # the timed run and the profiled one


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limits", "soon"], "limits 'soon' are unknown: use one of chat, reading, answer, all"),
        (["--trace", "nowhere/trace.json"], "name a file in a folder that exists"),
        (["--figure", "steps.txt"], "end it in .png, .svg, .pdf"),
        (["--max-tokens", "0"], "give a number of at least 1"),
        (["--step-log", "nowhere/steps.jsonl"], "name a file in a folder that exists"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, folder, more, message):
    result = run("profile", "--model", folder, *more)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_figure_of_steps_with_an_outlier_and_padding(tmp_path):
    steps = np.zeros(30, STEP)
    steps["forward"], steps["tokens"], steps["padded"], steps["used_blocks"] = 0.01, 5, 3, 7
    steps["schedule"][3] = 1.0
    draw_steps(steps, tmp_path / "steps.svg", "thirty steps")
    drawn = (tmp_path / "steps.svg").read_text()
    assert drawn.count("<!-- 1010.0 -->") == 1  # the one that is cut off says how long it was
    assert "<!-- padding -->" in drawn
    with pytest.raises(MinferError, match="no step was made"):
        draw_steps(steps[:0], tmp_path / "steps.svg", "none")
