"""Phase 2: from files to a model: every tensor in its place, none missed, and never two copies of the weights."""

import json

import numpy as np
import pytest
import torch

from minfer.core.errors import CheckpointError
from minfer.core.options import make_options

HEAD = "model.layers.1.self_attn.q_proj.weight"
SHAPES_FIRST = pytest.mark.points(needs="P2-10/P2-12")
"""Else it loads as the phase before does, which answers rightly: that is worth nothing here."""


@SHAPES_FIRST
def test_P2_01_a_missing_or_renamed_tensor_is_named(engine_cls, lab):
    code, hint = "P2-01", "no strict=False: what is missing would stay random, and the text be fluent nonsense"
    model = lab.model()
    renamed = HEAD.replace("q_proj", "query")
    cases = {
        "left out": ({HEAD: None}, HEAD),
        "renamed": ({HEAD: None, renamed: model.weights[HEAD]}, HEAD),
        "added": ({"model.layers.1.self_attn.gate.weight": np.ones(3)}, "gate"),
        "transposed": ({HEAD: model.weights[HEAD].T}, HEAD),
    }
    for change, (tensors, name) in cases.items():
        folder = model.save(lab.new_folder(), change=tensors)
        did = f"loaded a checkpoint in which {name} is {change}"
        message = lab.raises(CheckpointError, lambda f=folder: lab.load(engine_cls, f), code, did, hint)
        short = name.removeprefix("model.")
        lab.check(short in message, code, did, f"an error that names {short}", message[:200], hint)


@SHAPES_FIRST
def test_P2_02_a_tied_head_is_the_embedding(engine_cls, lab):
    code, hint = "P2-02", "tie_word_embeddings: one parameter under two names; tie it again after it was replaced"
    for family, embedding in (("tied", "embed_tokens"), ("gpt2", "wte")):
        model = lab.model(family)
        engine = lab.load(engine_cls, model.save(lab.new_folder()))
        head, table = engine.model.lm_head.weight, getattr(engine.model, embedding).weight
        did = f"loaded {family}, whose checkpoint has no lm_head"
        same = head.data_ptr() == table.data_ptr()
        lab.check(same, code, did, f"lm_head.weight to be the memory of {embedding}.weight", "a second copy", hint)
        (run,) = lab.run(engine, lab.prompt(model, 4), lab.params(3))
        lab.follows(run, model, code, did, hint)


@SHAPES_FIRST
def test_P2_05_the_index_says_which_shards_count(engine_cls, lab):
    code, hint = "P2-05", "weight_map in model.safetensors.index.json: tensor -> file; other files do not count"
    model = lab.model("qwen3")
    for shards in (2, 3):
        folder = model.save(lab.new_folder(), shards=shards)
        stale = lab.new_folder()
        lab.model("qwen3").save(stale, change={name: tensor * 0 for name, tensor in model.weights.items()})
        (stale / "model.safetensors").rename(folder / "old-model.safetensors")
        (run,) = lab.run(lab.load(engine_cls, folder), lab.prompt(model, 4), lab.params(3))
        lab.follows(run, model, code, f"loaded {shards} shards, beside which an old file lies", hint)
    index = folder / "model.safetensors.index.json"
    facts = json.loads(index.read_text())
    missing = sorted(set(facts["weight_map"].values()))[0]
    (folder / missing).unlink()
    did = f"loaded three shards of which {missing} is gone"
    message = lab.raises(CheckpointError, lambda: lab.load(engine_cls, folder), code, did, hint)
    lab.check(missing in message, code, did, f"an error that names {missing}", message[:200], hint)


@SHAPES_FIRST
def test_P2_07_one_read_of_the_device_per_step(engine_cls, lab):
    code, hint = "P2-07", "each .item(), .tolist(), .cpu() or `if tensor:` makes the GPU wait: one per step, at its end"
    model = lab.model("mistral")
    engine = lab.load(engine_cls, model.save(lab.new_folder()))
    for asked in ({}, {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "seed": 1}):
        sequences = engine.sequences([lab.prompt(model, 12)], lab.params(5, **asked))
        with lab.host_reads() as reads:
            steps = sum(1 for _ in engine.run(sequences))
        lab.equal(steps, 5, code, "counted the steps for 5 tokens", hint)
        calls = ", ".join(f"{count} × {name}" for name, count in reads.calls.items()) or "none"
        did = f"counted reads of the device in 5 steps with {asked or 'greedy sampling'}"
        lab.check(1 <= reads.total <= steps, code, did, "1 per step", calls, hint)


@SHAPES_FIRST
def test_P2_08_every_family_from_its_files(engine_cls, lab):
    def check(family):
        model = lab.model(family)
        engine = lab.load(engine_cls, model.save(lab.new_folder()))
        (run,) = lab.run(engine, lab.prompt(model, lab.sizes.window + 3), lab.params(3))
        hint = "which tensors of this family are not where they belong? GPT-2's files hold their matrices (in, out)"
        lab.follows(run, model, "P2-08", f"loaded {family} from a folder", hint)

    lab.each(lab.families, check)


@SHAPES_FIRST
def test_P2_09_weights_in_the_dtype_that_was_asked_for(engine_cls, lab):
    code, hint = "P2-09", "convert each tensor as it is placed; the rotary table stays float32 at least"
    model = lab.model("llama3")
    for stored in (torch.float32, torch.bfloat16):
        folder = model.save(lab.new_folder(), dtype=stored)
        for wanted in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            name = str(wanted).removeprefix("torch.")
            engine = lab.load(engine_cls, folder, dtype=name)
            did = f"loaded a checkpoint of {stored} with dtype={name}"
            dtypes = {parameter.dtype for parameter in engine.model.parameters()}
            lab.equal(dtypes, {wanted}, code, did, hint)
            for key, parameter in engine.model.named_parameters():
                want = torch.from_numpy(model.weights[f"model.{key}"]).to(stored).to(wanted)
                same = bool((parameter == want).all())
                lab.check(same, code, did, f"{key} as stored, converted", "other values", hint)
            lab.run(engine, lab.prompt(model, 4), lab.params(2))
            lab.equal(engine.record.dtypes, {wanted}, code, f"{did}; looked at the dtype of the logits", hint)


def test_P2_10_never_two_copies_of_the_weights(engine_cls, lab):
    code, hint = "P2-10", "build on torch.device('meta'), then read, convert and place one tensor after another"
    for family in ("llama", "tied"):
        model = lab.model(family)
        folder = model.save(lab.new_folder())
        for dtype in ("float64", "bfloat16"):
            with lab.live_bytes() as memory:
                engine = lab.load(engine_cls, folder, dtype=dtype)
            weights = sum(parameter.nbytes for parameter in engine.model.parameters())
            largest = max(tensor.nbytes for tensor in model.weights.values())  # as stored, in float64
            limit = 1.05 * (weights + largest + engine.model.rotary.nbytes)
            did = f"loaded {family} as {dtype}: {weights:,} bytes of weights, the largest stored tensor {largest:,}"
            lab.check(memory.peak <= limit, code, did, f"at most {limit:,.0f} bytes at once", f"{memory.peak:,}", hint)


@SHAPES_FIRST
def test_P2_11_nothing_is_left_on_meta(engine_cls, lab):
    from minfer.core.checkpoint import Checkpoint

    code, hint = "P2-11", "tables and buffers that were built on meta have no values: build them again"
    model = lab.model("yarn")
    checkpoint = Checkpoint(model.save(lab.new_folder()))
    built = engine_cls.build_model(checkpoint, make_options(engine_cls.Options, {"device": "cpu", "dtype": "float64"}))
    tensors = dict(built.named_parameters()) | dict(built.named_buffers()) | {"rotary": built.rotary}
    lost = [name for name, tensor in tensors.items() if tensor.device.type != "cpu"]
    lab.equal(lost, [], code, "called build_model with device=cpu; looked for tensors elsewhere", hint)
    engine = lab.engine(engine_cls, built)
    (run,) = lab.run(engine, lab.prompt(model, 5), lab.params(3))
    lab.follows(run, model, code, "generated with what build_model gave", hint)


def test_P2_12_what_does_not_fit_is_refused_before_it_takes_memory(engine_cls, lab):
    code, hint = "P2-12", "on torch.device('meta') a model is its shapes alone: plan compares them, and none has memory"
    model = lab.model()
    folder = model.save(lab.new_folder(), change={HEAD: None})
    weights = sum(tensor.nbytes for tensor in model.weights.values())
    did = f"loaded a checkpoint of {weights:,} bytes in which {HEAD} is left out"
    with lab.live_bytes() as memory:
        lab.raises(CheckpointError, lambda: lab.load(engine_cls, folder, dtype="float64"), code, did, hint)
    limit = weights // 10
    lab.check(memory.peak <= limit, code, did, f"at most {limit:,} bytes at once", f"{memory.peak:,}", hint)
