"""Checkpoints of codes: written tensor by tensor, read as they were, refused where they cannot be right."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from minfer.core.checkpoint import Checkpoint
from minfer.core.checkpoint.tensor_source import Outline
from minfer.core.config import ModelConfig
from minfer.core.errors import CheckpointError, ConfigError
from minfer.core.stored_quantization import StoredQuantization
from minfer.phase6.saving import Saving
from minfer.phase6.writer import TensorWriter
from tests.core import measured
from tests.parity.families import FAMILIES
from tests.parity.phases import PHASES, load
from tests.parity.reference import save_model

PROMPT = [[5, 6, 7, 8]]


@pytest.fixture
def folder(tmp_path):
    return save_model(FAMILIES["llama-tied"], tmp_path / "plain")


def quantized(folder, scheme="int4", group_size=32, quantize_head=False):
    out = folder.parent / f"{scheme}-{group_size}-{quantize_head}"
    Saving.of(folder, StoredQuantization(scheme, group_size, quantize_head)).save(out)
    return out


def change(folder, **facts):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **facts}))
    return folder


@pytest.mark.parametrize("scheme", ["fp16", "int8", "int4", "fp8"])
@pytest.mark.parametrize("family", ["llama-tied", "gpt2", "qwen2", "gpt2-untied"])
@pytest.mark.parametrize("head", [False, True])
def test_loading_equals_quantising_on_load_bit_by_bit(tmp_path, scheme, family, head):
    folder = save_model(FAMILIES[family], tmp_path / "plain")
    out = quantized(folder, scheme, quantize_head=head)
    stored = load(6, out)
    made = load(6, folder, quantization=scheme, quantize_head=head)
    ours, theirs = dict(stored.model.named_parameters()), dict(made.model.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert parameter.dtype == theirs[name].dtype
        assert torch.equal(parameter.double(), theirs[name].double()), name
    answers = [engine.generate(PROMPT)[0].token_ids for engine in (stored, made)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("phase", [n for n in PHASES if n >= 6])
def test_every_later_phase_loads_it(folder, phase):
    want = load(6, folder, quantization="int4").generate(PROMPT)[0].token_ids
    assert load(phase, quantized(folder)).generate(PROMPT)[0].token_ids == want


@pytest.mark.parametrize("phase", [n for n in PHASES if n < 6])
@pytest.mark.parametrize("scheme", ["int4", "fp16"])
def test_earlier_phases_say_which_phase_can(folder, phase, scheme):
    with pytest.raises(CheckpointError, match=f"is stored quantised as {scheme}: load it with phase 6 or later"):
        load(phase, quantized(folder, scheme))


def test_what_lies_beside_the_weights_comes_along(folder):
    (folder / "tokenizer.json").write_text("{}")
    (folder / "old.index.json").write_text("{}")
    out = quantized(folder, "int8")
    names = {file.name for file in out.iterdir()}
    assert {"tokenizer.json", "config.json", "model.safetensors"} <= names
    assert "old.index.json" not in names
    assert ModelConfig.from_folder(out).quantization == StoredQuantization("int8")
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder, out))
    after.pop("quantization_config")
    assert before == after


def test_the_bytes_of_the_plan_are_those_of_the_file(folder):
    saving = Saving.of(folder, StoredQuantization("int4"))
    out = quantized(folder)
    tensors = load_file(out / "model.safetensors")
    assert sum(tensor.nbytes for tensor in tensors.values()) == saving.nbytes_in_all == Checkpoint(out).nbytes
    parts = [tensor for name, tensor in tensors.items() if name.endswith((".codes", ".scale", ".zero"))]
    assert sum(part.nbytes for part in parts) == saving.nbytes
    assert Checkpoint(out).dtype == Checkpoint(folder).dtype


def test_an_existing_folder_is_not_overwritten_and_a_failure_leaves_nothing(folder):
    out = quantized(folder)
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"exists: remove it, or name another folder"):
        quantized(folder)
    assert (out / "model.safetensors").read_bytes() == before
    with pytest.raises(CheckpointError, match="there is no folder"):
        Saving.of(folder, StoredQuantization("int8")).save(folder.parent / "no" / "where")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensors[name][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    there = sorted(folder.parent.iterdir())
    with pytest.raises(CheckpointError, match=r"down_proj\.weight holds NaN"):
        quantized(folder, "int8")
    assert sorted(folder.parent.iterdir()) == there


def test_a_quantised_model_is_not_quantised_again(folder):
    with pytest.raises(CheckpointError, match="is stored as int4 already"):
        quantized(quantized(folder), "int8")


DAMAGE = {
    "a part is missing": (lambda t, n: t.pop(n + "scale"), "missing: layers.0.mlp.down_proj.scale"),
    "a part is of another dtype": (
        lambda t, n: t.update({n + "scale": t[n + "scale"].float()}),
        "of the wrong dtype: .*down_proj.scale in model.safetensors is F32, not torch.bfloat16",
    ),
    "codes are of another dtype": (
        lambda t, n: t.update({n + "codes": t[n + "codes"].to(torch.int8)}),
        "of the wrong dtype: .*down_proj.codes in model.safetensors is I8, not torch.uint8",
    ),
    "a part is of another shape": (
        lambda t, n: t.update({n + "zero": t[n + "zero"][:, :1].clone()}),
        "of the wrong shape: .*down_proj.zero",
    ),
    "the plain weight is there too": (
        lambda t, n: t.update({n + "weight": torch.ones(3)}),
        "unexpected: .*down_proj.weight",
    ),
    "another tensor has codes": (lambda t, n: t.update({"model.norm.weight": torch.ones(3, dtype=torch.int8)}), "(I8)"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(folder, case):
    out = quantized(folder)
    tensors = load_file(out / "model.safetensors")
    damage, message = DAMAGE[case]
    damage(tensors, "model.layers.0.mlp.down_proj.")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        load(6, out)


CONFIGS = [
    ({"scheme": "int5"}, r"scheme = 'int5' is none of 'fp16', 'int8', 'int4', 'fp8'"),
    ({"group_size": 48}, r"group_size = 48 is none of 32, 64, 128"),
    ({"group_size": 32.0}, r"group_size = 32\.0 is none of"),
    ({"group_size": True}, r"group_size = True is none of"),
    ({"group_size": 32.0}, r"group_size = 32\.0 is none of"),
    ({"quantize_head": 1}, r"quantize_head = 1 is none of"),
    ({"version": 7}, r"version 7 is not 1"),
    ({"quant_method": "awq"}, r"would change the result and is not supported"),
]


@pytest.mark.parametrize(("facts", "message"), CONFIGS)
def test_a_config_that_contradicts_is_refused(folder, facts, message):
    out = quantized(folder)
    stored = json.loads((out / "config.json").read_text())["quantization_config"]
    with pytest.raises(ConfigError, match=message):
        load(6, change(out, quantization_config={**stored, **facts}))


INDICES = [
    ("[" * 100_000, "is not an index with a weight_map"),
    (json.dumps({"weight_map": {"model.norm.weight": "a" * 300}}), "not the name of a file in the same folder"),
]


@pytest.mark.parametrize(("text", "message"), INDICES, ids=["nested", "long"])
def test_an_index_that_no_file_can_follow_is_refused_by_its_name(folder, text, message):
    out = quantized(folder, "int8")
    (out / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"index\.json .*{message}"):
        load(6, out)


def test_plain_weights_under_a_quantised_config_are_refused(folder):
    with pytest.raises(CheckpointError, match="missing"):
        load(6, change(folder, quantization_config=StoredQuantization("int8").to_facts()))


def test_codes_under_a_plain_config_are_refused(folder):
    out = quantized(folder, "int8")
    with pytest.raises(CheckpointError, match="is a quantised checkpoint, or not of a language model"):
        load(6, change(out, quantization_config=None))


def test_the_writer_lays_wide_numbers_first_and_refuses_what_was_not_announced(tmp_path):
    outlines = [Outline("a", (3,), torch.int8), Outline("b", (2, 2), torch.float32), Outline("c", (1,), torch.bfloat16)]
    tensors = {
        "a": torch.tensor([1, 2, -3], dtype=torch.int8),
        "b": torch.arange(8.0).view(2, 4)[:, ::2],
        "c": torch.ones(1, dtype=torch.bfloat16),
    }
    with TensorWriter(tmp_path / "x.safetensors", outlines) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
        with pytest.raises(ValueError, match="announced as"):
            writer.write("a", torch.ones(3))
    read = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert writer.places["b"][0] == 0


PEAK = """
import sys
from pathlib import Path
import torch
from minfer.core.device import Device
from minfer.core.measures.peak_memory import PeakMemory
from minfer.core.stored_quantization import StoredQuantization
from minfer.phase6.saving import Saving

torch.set_num_threads(1)
Saving.of(Path(sys.argv[1]), StoredQuantization("int8")).save(Path(sys.argv[2]))
saving = Saving.of(Path(sys.argv[1]), StoredQuantization("int8"))
with PeakMemory(Device.get("cpu")) as peak:
    saving.save(Path(sys.argv[3]))
print(peak.bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_writing_holds_one_tensor_not_the_model(tmp_path):
    facts = {**FAMILIES["llama-grouped"], "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 4}
    folder = save_model(facts, tmp_path / "plain")
    checkpoint = Checkpoint(folder)
    largest = 768 * 3072 * 8  # in float64, as it is stored
    peak = int(*measured.lines(PEAK, folder, tmp_path / "a", tmp_path / "b"))
    assert peak < 2.2 * largest < 0.3 * checkpoint.nbytes, f"{peak:,} bytes, the largest tensor has {largest:,}"
