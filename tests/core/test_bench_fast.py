"""`minfer bench fast`: the same weights for llama.cpp, who takes part, and what is said of the figures."""

import copy
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from minfer.bench import fast, ledger, table
from minfer.bench.claims import claims
from minfer.bench.contestants import EngineContestant, in_words, weight_bytes
from minfer.bench.gguf_file import why_not, write_gguf
from minfer.bench.runner import WARMUP, interleave
from minfer.bench.sample import Sample
from minfer.bench.workloads import Request, Workload, decode, prefill
from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.hub import resolve
from minfer.core.hub.gguf_convert import file_name, half_split_rows
from minfer.core.params import SamplingParams
from minfer.course.lab.tiny import tiny_model
from minfer.phase2 import Engine, EngineOptions


@pytest.fixture(scope="module")
def embedded():
    """The embedded model, whose widths all kinds of GGUF take, in float32."""
    return Engine.build_model(Checkpoint(resolve("tiny")), EngineOptions(device="cpu", dtype="float32"))


def test_decode_throughput_begins_when_every_request_has_its_first_token():
    sample = Sample(token_times=[[1.0, 2.0, 3.0, 4.0], [2.5, 4.5]], duration=9.0)
    assert sample.prefilled_s == 2.5
    assert sample.decode_throughput == pytest.approx(3 / 2)  # at 3.0, 4.0 and 4.5, until the last of them
    assert str(Sample([[1.0], [2.0]], 2.0).decode_throughput) == "nan"


def test_a_prefill_is_measured_in_prompt_tokens_until_the_first_token():
    part = ledger.entry(prefill(100, prompt=50), {"x": [Sample([[0.25]], 1.0)]})
    assert table.grid(part).head[:2] == ["", "prompt tokens/s"]
    assert table.grid(part).rows == [["x", "200", "250"]]


def part_of(name, **times):
    """A ledger's part of scripted runs, each of one request: first token at once, two more after some seconds."""
    about = Workload(name, "", [], "decode")
    made = {row: [Sample([[1.0, 1.5, 1.0 + at]], 9.0) for at in each] for row, each in times.items()}
    return ledger.entry(about, {row.replace("_", " "): runs for row, runs in made.items()}, {"phase 8": "no card"})


def test_a_claim_is_of_the_better_row_run_by_run_beside_what_was_asked():
    part = part_of("decode-1", transformers_fp32=[6, 8], phase_7_fp32=[3, 4], phase_7_fp16=[2, 4], phase_7_int8=[2, 8])
    assert claims({"parts": [part]}) == [
        "decode-1: phase 7 fp16 makes 2.50 (2.00–3.00) times the decode tokens/s of transformers fp32 (target: 3)",
        "decode-1: phase 7 int8 makes 0.75 (0.50–1.00) times the decode tokens/s of phase 7 fp16 (target: 1.1)",
    ]
    assert claims({"parts": [part_of("decode-16", phase_7_fp16=[1.0])]}) == []  # nobody to compare with


def test_a_row_that_cannot_run_says_why_and_no_figure():
    *_, absent = table.grid(part_of("decode-1", phase_7_fp32=[3, 4])).rows
    assert absent == ["phase 8: n/a (no card)", "–", "–", "–", "–"]


def test_a_row_is_marked_only_if_it_ran_less_often_than_others():
    names = [row[0] for row in table.grid(part_of("decode-1", often=[3, 4, 5], seldom=[6, 7])).rows]
    assert names == ["often", "seldom, 2 runs", "phase 8: n/a (no card)"]
    names = [row[0] for row in table.grid(part_of("decode-1", one=[3, 4], other=[6, 7])).rows]
    assert names == ["one", "other", "phase 8: n/a (no card)"]


def test_contestants_take_turns_after_a_warm_up_of_all_requests_and_a_slow_one_runs_twice():
    seen = []

    class Scripted:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, seconds

        def run(self, workload):
            seen.append((self.name, [request.params.max_tokens for request in workload.requests]))
            return Sample([], self.seconds)

    samples = interleave([Scripted("a", 61.0), Scripted("b", 59.0)], decode(100, 2), 3, Console(quiet=True))
    warm, full = [WARMUP, WARMUP], [64, 64]
    assert seen == [("a", warm), ("b", warm), ("a", full), ("b", full), ("a", full), ("b", full), ("b", full)]
    assert {name: len(runs) for name, runs in samples.items()} == {"a": 2, "b": 3}


def test_a_series_goes_on_from_a_ledger_and_what_failed_before_is_not_tried_again():
    class Counted:
        def __init__(self, name, broken=False):
            self.name, self.broken, self.runs = name, broken, 0

        def run(self, workload):
            self.runs += 1
            if self.broken:
                raise RuntimeError("out of memory")
            return Sample([[0.1, 0.2]], 1.0)

    work, saved = decode(100, 1), []
    part = ledger.entry(work, {"a": [], "b": []}, {"c": "no card"})
    first, broken = Counted("a"), Counted("b", broken=True)
    interleave([first, broken], work, 1, Console(quiet=True), ledger.series(part, lambda: saved.append(1)))
    assert (first.runs, broken.runs) == (2, 1)
    assert saved
    again, never = Counted("a"), Counted("b")
    interleave([again, never], work, 3, Console(quiet=True), ledger.series(part, lambda: saved.append(1)))
    assert (again.runs, never.runs) == (3, 0)
    said = {row["name"]: row.get("absent", len(row["samples"])) for row in part["rows"]}
    assert said == {"a": 3, "b": "failed: out of memory", "c": "no card"}


# ---- llama.cpp on the same weights ---------------------------------------------------------------------------------


def test_a_gguf_file_holds_the_models_own_weights_under_llama_cpps_names_and_orders(tmp_path):
    from gguf import GGUFReader

    model = tiny_model("llama", 17).module(torch.float32)
    write_gguf(model, "f32", tmp_path / "m.gguf")
    heads = {"attn_q": model.config.num_heads, "attn_k": model.config.num_kv_heads}
    read = {}
    for tensor in GGUFReader(tmp_path / "m.gguf").tensors:
        weight = torch.from_numpy(np.array(tensor.data))
        count = next((count for name, count in heads.items() if name in tensor.name), None)
        read[file_name(tensor.name).removeprefix("model.")] = half_split_rows(weight, count) if count else weight
    wanted = dict(model.named_parameters())
    assert read.keys() == wanted.keys()
    assert all(torch.equal(read[name], wanted[name].detach()) for name in wanted)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_llama_cpp_gives_phase_5s_greedy_tokens_on_them_alone_and_together(embedded, tmp_path, kind):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is a peer that takes minutes to build")
    from minfer.bench.llama_cpp_peer import LlamaCppContestant

    params = SamplingParams(max_tokens=24, ignore_eos=True)
    together = [Request(request.prompt_ids[: 3 + 7 * i], params) for i, request in enumerate(decode(4096, 4).requests)]
    engine = EngineContestant(5, embedded, num_blocks=64).engine
    wanted = [engine.generate([request.prompt_ids], params)[0].token_ids for request in together]
    theirs = LlamaCppContestant(embedded, kind, tmp_path)
    sample = theirs.run(Workload("", "", together))
    assert theirs.answers == wanted
    assert sample.facts["tokens_fed"] == sum(len(request.prompt_ids) for request in together) + 4 * 23
    theirs.run(Workload("", "", together[1:2]))
    assert theirs.answers == wanted[1:2]


def test_a_model_that_is_not_written_as_gguf_says_why():
    assert why_not(tiny_model("gpt2", 17).config, "f32") == "GPT2LMHeadModel is not written as GGUF"
    assert why_not(tiny_model("qwen2", 17).config, "f32") == "Qwen2ForCausalLM is not written as GGUF"
    assert "no multiples" in why_not(tiny_model("llama", 17).config, "q8_0")


# ---- who takes part ------------------------------------------------------------------------------------------------


def test_only_picks_rows_by_their_beginning_and_workloads_by_name(embedded, tmp_path):
    rows = fast.Rows(embedded, resolve("tiny"), tmp_path, Device.get("cpu")).all()
    tasks = fast.all_workloads(embedded)
    assert [task.name for task in tasks] == ["decode-1", "decode-16", "decode-32", "prefill"]
    some_rows, some_tasks = fast.chosen(rows, tasks, ["phase 7 int8", "decode-16"])
    assert [row.name for row in some_rows] == ["phase 7 int8", "phase 7 int8 rows"]
    assert [task.name for task in some_tasks] == ["decode-16"]
    assert fast.chosen(rows, tasks, ["decode-16"])[0] == rows
    assert fast.chosen(rows, tasks, ["phase 5"])[1] == tasks
    with pytest.raises(
        OptionsError, match="--only 'phase 9' is neither a row nor a workload: choose from transformers"
    ):
        fast.chosen(rows, tasks, ["phase 9"])


def test_the_row_of_graphs_is_not_run_without_a_card(embedded, tmp_path):
    *_, graphs = fast.Rows(embedded, resolve("tiny"), tmp_path, Device.get("cpu")).all()
    assert (graphs.name, graphs.absent) == ("phase 8 fp32", "no CUDA device")


def test_an_engine_that_takes_its_model_apart_gets_a_copy_of_it(embedded, tmp_path):
    before = {name: weight.clone() for name, weight in embedded.named_parameters()}
    rows = fast.Rows(embedded, resolve("tiny"), tmp_path, Device.get("cpu"))
    made = rows.changed("phase 7", 7, torch.float64, compiler="none").make()
    assert made.engine.dtype == torch.float64
    made.run(decode(4096, 2, new=2))
    after = dict(embedded.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_what_ran_names_the_kernels_and_the_weights_bytes(embedded):
    linear = sum(part.weight.numel() for name, part in embedded.named_modules() if name.endswith("_proj"))
    whole = sum(weight.numel() for weight in embedded.parameters())
    assert weight_bytes(embedded) == 4 * whole
    made = EngineContestant(6, copy.deepcopy(embedded), num_blocks=64, quantization="fp16")
    made.run(decode(4096, 2, new=2))
    assert made.effective()["weight_bytes"] == 4 * (whole - linear) + 2 * linear
    names = {said.rsplit(" ", 2)[0] for said in made.effective()["kernels"].split(", ")}
    assert names == {name for name, use in made.engine.kernels.items() if use.ran}


def test_shares_of_kernels_are_of_the_calls():
    uses = {"a": SimpleNamespace(ran=Counter({1: 5, 16: 1})), "b": SimpleNamespace(ran=Counter({32: 2}))}
    assert in_words({**uses, "never": SimpleNamespace(ran=Counter())}) == "a 75 %, b 25 %"
