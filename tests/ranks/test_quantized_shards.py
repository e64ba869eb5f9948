"""A quantised model that is dealt out answers as the same model does on one rank: codes and scales are the whole's."""

import pytest
import torch

from minfer.course.families import family_facts
from minfer.course.lockstep import Lockstep
from minfer.course.tiny import TinyModel
from minfer.phase10 import Engine

WHOLE_GROUPS = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
def test_codes_and_scales_are_those_of_the_whole(lab, scheme, tensor, pipeline):
    facts = {**family_facts(lab.sizes)["biased"], **WHOLE_GROUPS, "intermediate_size": 256}
    model = TinyModel("biased", facts, lab.seed)
    folder = model.save(lab.new_folder())
    options = {"quantization": scheme, "graph_batch": 0, "num_blocks": 20}
    whole = lab.load(Engine, folder, **options)
    dealt = lab.load(Engine, folder, tensor_parallel=tensor, pipeline_parallel=pipeline, ranks=Lockstep(), **options)
    prompt = lab.prompt(model, 9)
    (want,), (got,) = (lab.run(engine, [prompt], lab.params(5)) for engine in (whole, dealt))
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
        build_shard(Stored(), None, None, torch.float32, torch.device("cpu"))
