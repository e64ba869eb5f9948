"""`minfer quantize` and `minfer quality`, and what is behind the latter's figures."""

import math

import numpy as np
import pytest
import torch

from minfer.commands.quality import parse
from minfer.core.checkpoint import Checkpoint
from minfer.core.errors import OptionsError
from minfer.phase6 import Engine
from minfer.phase6.quality import Sample, common, compare, divergence, perplexity


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_quantize_writes_a_folder_that_generates(run, folder, tmp_path):
    out = tmp_path / "small"
    result = run("quantize", folder, out, "--to", "int4")
    assert result.code == 0
    first, second = result.out.splitlines()
    before, after = Checkpoint(folder).nbytes, Checkpoint(out).nbytes
    assert f"{after / before:.2f} of" in first
    assert "bytes each" in second
    assert "0.5 + 4/group bytes" in second
    assert "quantising to int4-g32" in result.err
    same = run("generate", "abc", "--model", out, "--max-tokens", 5, "--phase", 6)
    want = run("generate", "abc", "--model", folder, "--max-tokens", 5, "--phase", 6, "--quantization", "int4")
    assert same.code == want.code == 0
    assert same.out == want.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--to", "fpp16"], "quantization 'fpp16' is unknown (did you mean fp16?): use fp16, int8, int4, fp8"),
        (["--to", "int4", "--group-size", 48], "group_size = 48: use 32, 64, 128"),
    ],
)
def test_quantize_refuses_in_one_line(run, folder, tmp_path, more, message):
    result = run("quantize", folder, tmp_path / "small", *more)
    assert (result.code, result.err) == (2, f"minfer: error: {message}\n")
    assert not (tmp_path / "small").exists()


def test_quantize_refuses_what_has_no_files_and_what_is_there(run, folder, tmp_path):
    assert "has no files: load it with quantization=int8" in run("quantize", "random:tiny", "x", "--to", "int8").err
    assert "exists: remove it" in run("quantize", folder, tmp_path, "--to", "int8").err
    assert run("quantize", folder, tmp_path / "a", "--to", "int8").code == 0
    assert "is stored as int8 already" in run("quantize", tmp_path / "a", tmp_path / "b", "--to", "int8").err


def test_quality_is_a_row_for_each_scheme(run, folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abcde fghij klmno " * 10)
    flags = ["--text", text, "--tokens", 60, "--dtype", "float32"]
    result = run("quality", folder, *flags, "--quantization", "int8-rows", "--quantization", "int4-g64")
    assert result.code == 0
    lines = result.out.splitlines()
    assert any("59 tokens of text.txt in 1 chunks" in line for line in lines)
    for name in ("float32", "int8-rows", "int4-g64"):
        assert len([line for line in lines if f"│ {name} " in line]) == 1
    assert "int4-g128" not in result.out


def test_quality_refuses_in_one_line(run, folder, tmp_path):
    assert "cannot read the text" in run("quality", folder, "--text", tmp_path / "none").err
    assert "behind int8 there may be -rows" in run("quality", folder, "--quantization", "int8-row").err
    (tmp_path / "short").write_text("")
    assert "tokens of text: at least 2 are needed" in run("quality", folder, "--text", tmp_path / "short").err
    assert run("quantize", folder, tmp_path / "a", "--to", "int8").code == 0
    assert "is stored quantised: give the model that it was made from" in run("quality", tmp_path / "a").err


def test_names_of_schemes_are_options():
    assert parse("int4-g64") == {"quantization": "int4", "group_size": 64}
    assert parse("int8-rows") == {"quantization": "int8", "quantize_rows": True}
    for wrong in ("int4-rows", "int4-g48", "nf4", "int8-x"):
        with pytest.raises(OptionsError):
            parse(wrong)


def test_perplexity_and_divergence_are_what_the_oracle_says(lab):
    model = lab.model("qwen3")
    reference, engine = lab.engine(Engine, model), lab.engine(Engine, model, quantization="int4")
    ids = lab.prompt(model, 50)
    sample = Sample([ids[:30], ids[30:]], [ids[:5], ids[30:36]], 6)
    lost = []
    for chunk in sample.chunks:
        logits = model.oracle.logits(chunk)[:-1]
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        lost += [-math.log(row[token]) for row, token in zip(chances, chunk[1:], strict=True)]
    assert math.isclose(perplexity(reference, sample), math.exp(sum(lost) / 48), rel_tol=1e-6)
    same = compare(reference, reference, sample, lambda fraction: None)
    assert (same.divergence, same.match) == (0.0, 6.0)
    found = compare(engine, reference, sample, lambda fraction: None)
    assert found.divergence > 1e-5
    assert found.perplexity != same.perplexity
    assert 0.5 <= found.nbytes / found.parameters < 1
    answers = [one.generate(sample.prompts, lab.params(6)) for one in (engine, reference)]
    matches = [common(a.token_ids, b.token_ids) for a, b in zip(*answers, strict=True)]
    assert found.match == sum(matches) / 2


def test_divergence_is_from_the_reference_to_ours():
    sure, unsure = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    assert math.isclose(divergence(sure, unsure).item(), 0.9 * math.log(1.8) + 0.1 * math.log(0.2), rel_tol=1e-6)
    assert common([1, 2, 3], [1, 2, 4]) == 2


def test_a_sample_is_cut_into_chunks_that_fit(lab):
    engine = lab.engine(Engine, lab.model(), lab.tokenizer(), context=20)
    sample = Sample.of(engine, " ".join(["7"] * 50), tokens=41)
    assert [len(chunk) for chunk in sample.chunks] == [20, 20]  # the last token has none before it
    assert sample.scored == 38
    assert sample.answer == 10
    assert [len(prompt) for prompt in sample.prompts] == [10, 10]
