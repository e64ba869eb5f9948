"""A quantised model that is dealt out answers as the same model does on one rank: codes and scales are the whole's."""

import pytest
import torch

from minfer.core.errors import OptionsError
from minfer.core.stored_quantization import StoredQuantization
from minfer.course.lab.families import family_facts
from minfer.course.lab.tiny import TinyModel
from minfer.course.machines.lockstep import Lockstep
from minfer.phase6 import QuantizedLinear
from minfer.phase6.saving import Saving
from minfer.phase10 import Engine

WHOLE_GROUPS = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("scheme", "head"), [("int8", True), ("fp8", False), ("int4", True)])
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
def test_codes_and_scales_are_those_of_the_whole(lab, scheme, head, tensor, pipeline, stored):
    facts = {**family_facts(lab.sizes)["biased"], **WHOLE_GROUPS, "intermediate_size": 256}
    model = TinyModel("biased", facts, lab.seed)
    folder = model.save(lab.new_folder())
    options = {"graph_batch": 0, "num_blocks": 20}
    asked = {"quantization": scheme, "quantize_head": head}
    whole = lab.load(Engine, folder, **options, **asked)
    if stored:
        folder, asked = quantized(lab, folder, scheme, quantize_head=head), {}
    world = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "ranks": Lockstep()}
    dealt = lab.load(Engine, folder, **world, **options, **asked)
    prompt = lab.prompt(model, 9)
    (want,), (got,) = (lab.run(engine, [prompt], lab.params(5)) for engine in (whole, dealt))
    heads = [use for use in dealt.kernels.values() for name in use.layers if "lm_head" in name]
    assert bool(heads) == (head and pipeline == 1), "rank 0 has a quantised head where it has one"
    dealt.close()
    assert got.token_ids == want.token_ids
    difference = torch.from_numpy(got.logits - want.logits).abs().max()
    assert difference < 1e-9
    plain = model.oracle.logits([*prompt, *want.token_ids])[len(prompt) - 1 : -1]
    assert abs(plain - want.logits).max() > 1e-3, "nothing was quantised"


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_a_rank_reads_its_own_codes_only(lab, family):
    model = lab.model(family)
    folder = quantized(lab, model.save(lab.new_folder()), "int8")
    whole = lab.load(Engine, folder, graph_batch=0, num_blocks=20)
    dealt = lab.load(Engine, folder, graph_batch=0, num_blocks=20, tensor_parallel=2, ranks=Lockstep())
    prompt = lab.prompt(model, 7)
    (want,), (got,) = (lab.run(engine, [prompt], lab.params(4)) for engine in (whole, dealt))
    dealt.close()
    assert got.token_ids == want.token_ids
    assert abs(got.logits - want.logits).max() < 1e-9
    codes = sum(len(layer.codes.flatten()) for layer in whole.model.modules() if isinstance(layer, QuantizedLinear))
    file = (folder / "model.safetensors").stat().st_size
    assert codes > file / 20
    assert all(read < file - codes / 3 for read in dealt.ranks.bytes_read)


def test_groups_that_ranks_would_cut_are_said_with_their_size(lab):
    facts = {**family_facts(lab.sizes)["llama"], **WHOLE_GROUPS, "head_dim": 16, "intermediate_size": 256}
    folder = quantized(lab, TinyModel("llama", facts, lab.seed).save(lab.new_folder()), "int4", group_size=64)
    with pytest.raises(OptionsError, match="tensor_parallel = 2 cuts 64 columns at 32, within one of the groups of 64"):
        lab.load(Engine, folder, tensor_parallel=2, ranks=Lockstep())


def quantized(lab, folder, scheme, **facts):
    out = lab.new_folder() / "quantised"
    Saving.of(folder, StoredQuantization(scheme, **facts)).save(out)
    return out


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_layers_of_each_rank_may_stay_on_the_host(lab, tensor, pipeline):
    model = lab.model("qwen3")
    folder = model.save(lab.new_folder())
    options = {"offload_layers": 1, "num_blocks": 20, "ranks": Lockstep()}
    engine = lab.load(Engine, folder, tensor_parallel=tensor, pipeline_parallel=pipeline, **options)
    for run in lab.run(engine, [lab.prompt(model, length) for length in (5, 9)], lab.params(4)):
        lab.follows(run, model, "ranks", "answered with offload_layers=1")
    assert len(engine.weights.weights) == 1
    engine.close()
