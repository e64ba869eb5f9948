"""`minfer memory`: what it prints is true, fits the terminal, and can be read without colours."""

import io
import json
import re
import threading
import time

import pytest
import torch
from rich.console import Console

from minfer.commands.memory import loading_peak, memory_command
from minfer.commands.memory_report import Part, bar, binary, card_end, decimal
from minfer.core.checkpoint.shapes import random_config
from minfer.core.config import ModelConfig
from minfer.core.device import CPU, Device
from minfer.core.device.cards import find_card
from minfer.core.errors import DeviceError, MinferError, OptionsError
from minfer.core.hub import embedded_folder
from minfer.core.measures.peak_memory import PeakMemory
from minfer.phase2 import MemoryBudget

GIB = 2**30
MARKS = "█▓▒░"


def printed(model, gpu=None, memory_gb=None, width=100, **choices):
    chosen = {"batch": 1, "context": None, "dtype": "auto", "kv_dtype": "auto", "measure": False, **choices}
    console = Console(file=io.StringIO(), width=width)
    memory_command(model, gpu, memory_gb, console=console, **chosen)
    return console.file.getvalue()


def test_the_formula_has_the_models_numbers():
    text = printed("random:llama3-8b", "l4", batch=4, context=1000)
    assert "8,030,261,248 parameters" in text
    assert "L4 24 GB, 22.49 GiB" in text
    assert "= 2 · layers · KV heads · head_dim · bytes\n" in text
    assert "= 2 · 32 · 8 · 128 · 2 = 131,072\n" in text
    assert "131,072 B × 1,000 × 4" in text
    assert "8 KV heads for 32 query heads; without it 4 times: 1.95 GiB" in text
    assert "Phase 3 holds one sequence at a time: 125.00 MiB for 1,000 tokens" in text


def test_every_weight_format_is_listed_with_its_bytes():
    text = printed("random:llama2-7b", memory_gb=24)
    for row in ("float16 2.000 13.48 GB 13.48 GB yes", "int8 1.000 6.74 GB 6.87 GB yes", "float32 4.000 26.95 GB"):
        assert row in re.sub(r" +", " ", text)


@pytest.mark.parametrize("width", [60, 100, 200])
@pytest.mark.parametrize(
    "asked", [("random:mistral-7b", "rtx4090"), ("random:llama2-13b", "t4"), ("random:llama3.2-1b", "h100"), ("tiny",)]
)
def test_no_line_is_wider_than_the_terminal_and_the_bar_fills_it(asked, width):
    lines = printed(*asked, width=width, batch=3).splitlines()
    assert max(map(len, lines)) <= width
    (drawn,) = (line for line in lines if line.startswith("█") and not re.search(r"\w", line))
    assert len(drawn) == min(width, 100)


def test_the_bar_is_in_proportion_and_shows_even_the_smallest_part():
    parts = [Part("a", 600, "█", ""), Part("b", 9, "▓", ""), Part("c", 0, "▒", ""), Part("d", 391, "░", "")]
    drawn = bar(parts, 50).plain
    assert [drawn.count(mark) for mark in MARKS] == [30, 1, 0, 19]
    assert drawn == "".join(sorted(drawn, key=MARKS.index))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_the_end_of_the_card_is_marked_below_the_bar(share):
    line = card_end(80, share)
    assert line.index("▲") == int(80 * share)
    assert len(line) <= 80
    assert "the card ends here" in line


@pytest.mark.parametrize(
    ("model", "gpu", "batch", "context"),
    [
        ("mistral-7b", "rtx4090", 4, None),
        ("llama2-13b", "t4", 8, 2048),
        ("llama3.2-1b", "rtx3060", 1, None),
        ("qwen2.5-7b", "l4", 64, 4096),
        ("llama2-13b", "a100-40gb", 9, None),
    ],
)
def test_whatever_it_advises_fits(model, gpu, batch, context):
    text = " ".join(printed(f"random:{model}", gpu, batch=batch, context=context).split())
    assert "Not this" in text
    advice = re.search(r"Try (.*?)\. ", text).group(1).split(" or ")
    for one in advice:
        change = {name: value if name == "dtype" else int(value) for name, value in re.findall(r"--(\w+) (\S+)", one)}
        asked = {"batch": batch, "context": context, "dtype": "bfloat16", **change}
        assert MemoryBudget(random_config(model), find_card(gpu).memory, **asked).fits, one


def test_what_cannot_be_helped_is_said():
    assert "It needs a larger card" in printed("random:llama2-13b", memory_gb=4)


def test_sliding_windows_and_a_cache_in_another_dtype_are_said_to_change_nothing_yet():
    text = " ".join(printed("random:mistral-7b", "h100", kv_dtype="fp8", context=8192).split())
    assert "Sliding windows: 256.00 MiB would hold what can still be seen, but it keeps all." in text
    assert "fp8 is a what-if: engines keep the cache in bfloat16 here." in text
    assert "what-if" not in printed("random:mistral-7b", "h100")


def test_nothing_is_allocated_for_a_random_shape():
    printed("tiny")  # what is imported at first use
    started = time.perf_counter()
    with PeakMemory(Device.get("cpu")) as peak:
        printed("random:llama2-13b", "h100")
    assert peak.bytes < 20e6
    assert time.perf_counter() - started < 30  # to fill 26 GB takes longer


@pytest.mark.parametrize(
    ("stored", "shown"), [("float16", "float16"), ("torch.bfloat16", "bfloat16"), (None, "float32")]
)
def test_on_a_named_card_auto_is_the_dtype_of_the_config(tmp_path, stored, shown):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "torch_dtype": stored}))
    assert f"{shown}, rotary table" in printed(str(tmp_path), "h100")


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"gpu": "l4", "memory_gb": 24}, OptionsError, "--gpu l4 and --memory-gb 24 both name a card"),
        ({"memory_gb": 0}, OptionsError, "--memory-gb 0: give the card's memory in GB"),
        ({"memory_gb": float("nan")}, OptionsError, "--memory-gb nan"),
        ({"gpu": "gtx9"}, DeviceError, "card 'gtx9' is unknown.*known: t4"),
        ({"model": "random:llama9"}, MinferError, "no shape 'llama9'"),
        ({"measure": True, "dtype": "int8"}, OptionsError, "phase 2 loads float64.*: not int8"),
        (
            {"measure": True, "model": "random:llama2-13b", "dtype": "float64"},
            DeviceError,
            "would need 105.4 GB .* and 10.0 GB are free",
        ),
    ],
)
def test_what_cannot_be_is_refused(choices, error, message, monkeypatch):
    monkeypatch.setattr(type(Device.get("cpu")), "free_memory", lambda self: 10**10)
    with pytest.raises(error, match=message):
        printed(**{"model": "random:gpt2", **choices})


def test_the_measured_peak_stands_beside_the_promise():
    folder, cpu = embedded_folder(), Device.get("cpu")
    budget = MemoryBudget(ModelConfig.from_folder(folder), GIB, dtype="float32")
    promise = budget.loading_peak + budget.rotary_table
    text = re.sub(r" +", " ", printed("tiny", dtype="float32", measure=True))
    assert f"final weights {decimal(budget.weights)}" in text
    assert f"= at most {decimal(promise)}" in text
    assert re.search(r"measured peak [\d.]+ MB, \d+ %", text)
    assert 0.8 * budget.weights < loading_peak("tiny", budget, cpu) < 2 * promise  # exact in test_loading_peak.py


def test_a_peak_is_seen_though_it_is_over_at_the_end():
    class Readings(CPU):
        def __init__(self):
            self.used, self.read = 100, threading.Event()

        def used_memory(self):
            self.read.set()
            return self.used

    device = Readings()
    with PeakMemory(device) as peak:
        for used in (700, 400):
            device.used = used
            device.read.clear()
            assert device.read.wait(timeout=100)
    assert (peak.before, peak.bytes) == (100, 600)


def test_memory_that_was_freed_before_does_not_hide_a_peak():
    def fill():
        return [torch.ones(2**14) for _ in range(1024)]  # 64 KiB each: too few to be mapped, so taken from the heap,

    *freed, last = fill()  # which keeps what is below the last of them
    del freed
    with PeakMemory(Device.get("cpu")) as peak:
        held = fill()  # to the end, where it is read once more: a thread that only seldom runs may miss a moment
    assert len([last, *held]) == 1 + 1024
    assert 60e6 < peak.bytes < 90e6


def test_bytes_are_scaled_in_both_ways():
    assert [binary(n) for n in (0, 1023, 1024, 2**30, 1536 * 2**20)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.00 GiB",
        "1.50 GiB",
    ]
    assert [decimal(n) for n in (999, 1000, 14 * 10**9, 999_999)] == ["999 B", "1.00 kB", "14.00 GB", "1.00 MB"]


def test_layers_on_the_host_are_not_counted_on_the_card():
    whole, away = (printed("random:llama3-8b", "l4", offload_layers=count) for count in (0, 16))
    assert "16 of 32 layers on the host: 6.50 GiB" in re.sub(r"\s+", " ", away)
    assert "on the host" not in whole
    with pytest.raises(OptionsError, match=r"^--measure loads the whole model, as phase 2 does: leave out --offload"):
        printed("tiny", offload_layers=1, measure=True)
