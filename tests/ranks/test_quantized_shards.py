"""A quantised model that is dealt out answers as the same model does on one rank: codes and scales are the whole's."""

import pytest
import torch

from minfer.course.lab.families import family_facts
from minfer.course.lab.tiny import TinyModel
from minfer.course.machines.lockstep import Lockstep
from minfer.phase10 import Engine

WHOLE_GROUPS = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(("scheme", "head"), [("int8", True), ("fp8", False), ("int4", True)])
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
def test_codes_and_scales_are_those_of_the_whole(lab, scheme, head, tensor, pipeline):
    facts = {**family_facts(lab.sizes)["biased"], **WHOLE_GROUPS, "intermediate_size": 256}
    model = TinyModel("biased", facts, lab.seed)
    folder = model.save(lab.new_folder())
    options = {"quantization": scheme, "quantize_head": head, "graph_batch": 0, "num_blocks": 20}
    whole = lab.load(Engine, folder, **options)
    dealt = lab.load(Engine, folder, tensor_parallel=tensor, pipeline_parallel=pipeline, ranks=Lockstep(), **options)
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


def test_a_model_that_is_stored_quantised_is_refused(lab):
    from minfer.core.errors import CheckpointError
    from minfer.phase10.shard import build_shard

    class Stored:
        folder = "stored"

        class config:
            quantization = "int8"

    with pytest.raises(CheckpointError, match="load the original with quantization="):
        build_shard(Stored(), None, None, torch.float32, lambda name: torch.device("cpu"))


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
