"""Ranks as real processes over Gloo: the oracle's answers, two engines side by side, from a script, under torchrun."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minfer.core.errors import DeviceError, OptionsError
from minfer.phase10 import Engine, torch_group
from tests.ranks.processes import children, gone

ROOT = Path(__file__).parents[2]
FEW = {"max_batch": 4, "graph_batch": 2, "num_blocks": 30, "block_size": 4}


def run_right(lab, engine, model, **params):
    for run in lab.run(engine, [lab.prompt(model, length) for length in (7, 1, 10)], lab.params(5, **params)):
        lab.follows(run, model, "ranks", "answered over Gloo")


def test_two_engines_at_once_answer_as_the_oracle_does_and_leave_nobody_behind(lab):
    threads = torch.get_num_threads()
    llama, gpt2 = lab.model("llama"), lab.model("gpt2")
    one = lab.load(Engine, llama.save(lab.new_folder()), tensor_parallel=2, **FEW)
    other = lab.load(Engine, gpt2.save(lab.new_folder()), pipeline_parallel=2, **FEW)
    pids = children()
    assert len(pids) == 2
    for _ in range(2):
        run_right(lab, one, llama, prompt_logprobs=1)
        run_right(lab, other, gpt2)
    assert all(read < 0.7 * sum(one.ranks.bytes_read) for read in one.ranks.bytes_read)
    one.close()
    one.close()
    with pytest.raises(RuntimeError, match="the engine was closed"):
        lab.run(one, [lab.prompt(llama, 3)])
    run_right(lab, other, gpt2)
    del other  # collected: its ranks end too
    gc.collect()
    assert gone(pids)
    assert torch.get_num_threads() == threads


def test_tensor_and_pipeline_together(lab):
    model = lab.model("qwen3")
    with_both = lab.load(Engine, model.save(lab.new_folder()), tensor_parallel=2, pipeline_parallel=2, **FEW)
    assert len(children()) == 3
    run_right(lab, with_both, model)
    with_both.close()


SCRIPT = """
import os, signal, sys
import torch
from minfer import SamplingParams
from minfer.phase10 import Engine
engine = Engine.load(sys.argv[1], device="cpu", dtype="float64", tensor_parallel=2, graph_batch=0)
print(engine.generate([[5, 6, 7]], SamplingParams(max_tokens=6, ignore_eos=True))[0].token_ids, flush=True)
"""
AT_THE_END = {
    "leave": "",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
    "os.kill(os.getpid(), signal.SIGINT)\nengine.generate([[5]], SamplingParams(max_tokens=30))",
}
CODES = {"leave": 0, "killed": -signal.SIGKILL, "interrupted": -signal.SIGINT}


@pytest.mark.parametrize("end", AT_THE_END)
def test_a_script_without_a_file_may_end_in_any_way(lab, end):
    model = lab.model("tied")
    folder = model.save(lab.new_folder())
    script = SCRIPT + "print(engine.ranks.others.all[0].popen.pid, flush=True)\n" + AT_THE_END[end]
    made = python("-", str(folder), text=script)
    tokens, pid = made.stdout.splitlines()
    assert tokens == str(model.oracle.greedy([5, 6, 7], 6)[0]), made.stderr
    assert made.returncode == CODES[end], made.stderr
    assert gone([int(pid)])


def test_under_torchrun_the_ranks_that_are_there_are_used(lab, tmp_path):
    model = lab.model("tied")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = str(model.save(lab.new_folder()))
    made = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), folder)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [str(model.oracle.greedy([5, 6, 7], 6)[0])], made.stdout  # rank 0 alone goes on


def python(*args, text=None):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *args], input=text, env=env, capture_output=True, text=True, timeout=200)


# ---- what is refused before anything is started ----------------------------------------------------------------------


def refused(lab, **options):
    with pytest.raises((OptionsError, DeviceError)) as caught:
        Engine.load(str(lab.model("llama").save(lab.new_folder())), **{"device": "cpu", **options})
    assert not children()
    return str(caught.value)


def test_what_cannot_be_is_said_with_its_numbers(lab, monkeypatch):
    layers, kv_heads = lab.sizes.layers, lab.sizes.kv_heads
    assert f"the model has {layers} layers" in refused(lab, pipeline_parallel=layers + 1)
    assert f"{kv_heads} key/value heads" in refused(lab, tensor_parallel=kv_heads + 1)
    assert "at least 1" in refused(lab, tensor_parallel=0)
    assert "rank_timeout = 0" in refused(lab, rank_timeout=0)
    assert "auto, processes or torchrun" in refused(lab, tensor_parallel=2, ranks="mpi")
    assert "start this with torchrun" in refused(lab, tensor_parallel=2, ranks="torchrun")
    with pytest.raises(OptionsError, match=r"use Engine\.load"):
        lab.engine(Engine, lab.model("llama"), tensor_parallel=2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert "torchrun has started 3 ranks: start 2" in refused(lab, tensor_parallel=2)


def test_more_gpus_than_there_are_are_refused(lab):
    if torch.cuda.device_count() > 1:
        pytest.skip("this machine has two GPUs")
    assert "CUDA devices" in refused(lab, tensor_parallel=2, device="cuda")


def test_a_torch_without_distributed_is_told(lab, monkeypatch):
    monkeypatch.setattr(torch_group.dist, "is_available", lambda: False)
    assert "built without torch.distributed" in refused(lab, tensor_parallel=2)


def test_one_rank_starts_nobody(lab):
    model = lab.model("llama")
    engine = lab.load(Engine, model.save(lab.new_folder()), tensor_parallel=1, pipeline_parallel=1)
    run_right(lab, engine, model)
    assert not children()
    engine.close()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL gives each rank a GPU of its own: two are needed")
def test_two_gpus_answer_as_the_oracle_does(lab):
    model = lab.model("llama")
    for dealt in ({"tensor_parallel": 2}, {"pipeline_parallel": 2}):
        engine = lab.load(Engine, model.save(lab.new_folder()), device="cuda", **dealt, **FEW)
        run_right(lab, engine, model)
        engine.close()
