"""Formulas of bytes and FLOPs, each beside a count of what operators really read, wrote and computed."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from minfer.bench.simulation import step_of
from minfer.core.batch import ForwardBatch
from minfer.core.model import Transformer
from minfer.core.params import SamplingParams
from minfer.cost import operations
from minfer.cost.counting import Traffic, counted_flops
from minfer.cost.formulas import Formulas, Step
from minfer.course.lab.tiny import tiny_model
from minfer.phase1 import Engine as Phase1
from minfer.phase3 import Engine as Phase3
from minfer.phase4 import Engine as Phase4
from minfer.phase5 import Engine as Phase5
from minfer.phase6 import Engine as Phase6

PROMPTS = [[5, 6, 7, 8, 9], [3, 4, 5], [9, 8, 7, 6, 5, 4, 3]]
SHORT = [[5, 6], [3, 4, 5], [9]]
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")


class Counted:
    """An engine each of whose steps is counted beside what the formulas say of it."""

    def __init__(self, base, model, weights="float64", computed=None, **options):
        self.seen = []
        counted = self

        class Watching(base):
            def prepare(self, sequences):
                batch = super().prepare(sequences)
                self.now = step_of(batch, sequences, getattr(self.options, "block_size", 0))
                return batch

            def forward(self, batch: ForwardBatch):
                pool = self.cache.pool if hasattr(getattr(self, "cache", None), "pool") else None
                with Traffic(self.model, pool) as traffic:
                    out = super().forward(batch)
                counted.seen.append((self.now, traffic, counted_flops(lambda: super(Watching, self).forward(batch))))
                return out

        if base not in (Phase1, Phase3, Phase4):
            options["num_blocks"] = 24
            options["block_size"] = 4
        self.engine = Watching(model, None, base.Options(**options))
        self.formulas = Formulas(self.engine.config, weights, computed)

    def run(self, prompts=PROMPTS, new=3):
        self.engine.generate(prompts, SamplingParams(max_tokens=new, ignore_eos=True))
        return [(self.formulas.work(step), step, traffic, flops) for step, traffic, flops in self.seen]


@pytest.mark.parametrize(
    ("base", "family"),
    [(Phase1, "gpt2"), (Phase3, "qwen2"), (Phase4, "llama"), (Phase5, "qwen3"), (Phase5, "gpt2")],
)
def test_flops_are_those_that_torch_counts_with_attention_given_a_formula(base, family):
    rows = {"max_batch": 3} if base in (Phase4, Phase5) else {}
    steps = Counted(base, tiny_model(family, 17).module(), **rows).run(SHORT)  # within every window
    assert len(steps) >= 3
    for work, step, _, flops in steps:
        assert work.flops == flops, step


def test_torch_itself_counts_attention_on_a_cpu_as_nothing():
    q = torch.rand(1, 2, 3, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    with FlopCounterMode(display=False) as counter:
        attend(q, q, q)
    assert counter.get_total_flops() == 0  # if this fails, torch has learnt it: the formula may go
    assert counted_flops(lambda: attend(q, q, q)) == 4 * 2 * 3 * 3 * 8


@pytest.mark.parametrize("base", [Phase3, Phase4, Phase5])
def test_weights_and_keys_and_values_are_the_bytes_that_operators_touch(base):
    steps = Counted(base, tiny_model("llama", 17).module(), **({} if base is Phase3 else {"max_batch": 3})).run()
    for work, step, traffic, _ in steps:
        assert traffic.weights == work.weights_read
        assert traffic.kv == work.kv_read, step
        if base is Phase5:
            assert traffic.written == work.kv_written
            assert traffic.copied == work.copied
    if base is Phase5:
        assert any(work.copied for work, *_ in steps)
        assert not steps[0][0].copied  # a prompt's first chunk reads what it brings


def test_a_prompt_that_is_chunked_gathers_what_came_before():
    steps = Counted(Phase5, tiny_model("llama", 17).module(), chunk_size=3, max_batch=3).run()
    for work, _, traffic, flops in steps:
        assert (traffic.kv, traffic.copied, flops) == (work.kv_read, work.copied, work.flops)


def test_a_tied_head_is_read_though_it_is_no_weight_of_its_own():
    model = Transformer(replace(tiny_model("llama", 17).config, tie_word_embeddings=True)).double()
    steps = Counted(Phase3, model).run()
    assert all(traffic.weights == work.weights_read for work, _, traffic, _ in steps)


@pytest.mark.parametrize(
    ("quantization", "rows"), [("int8", torch.bfloat16), ("int4", torch.bfloat16), ("fp16", torch.float32)]
)
def test_flops_of_packed_weights_are_counted_too(quantization, rows):
    sizes = {"hidden_size": 384, "intermediate_size": 512, "head_dim": 192, "num_heads": 2, "num_kv_heads": 1}
    model = Transformer(replace(tiny_model("llama", 17).config, vocab_size=80, **sizes)).to(rows)
    counted = Counted(Phase6, model, "float32", "float32", quantization=quantization)
    for work, _, _, flops in counted.run():
        assert flops == work.flops
    assert any(name != "dequantize" for name in counted.engine.kernels)


def test_scales_are_bytes_too():
    config = tiny_model("llama", 17).config
    plain, eight = Formulas(config, "bfloat16"), Formulas(config, "int8")
    assert plain.layer_bytes == 2 * plain.layer_weights
    channels = sum(one.copies * one.rows for one in eight.counted.linears if one.part != "head")
    assert eight.layer_bytes == eight.layer_weights + 2 * channels


def test_a_decode_step_over_pages_sees_whole_blocks_of_the_longest():
    assert Step.decode([5, 17], 16) == Step((1, 1), (32, 32), 2, 64)
    assert Step.decode([5, 17]) == Step((1, 1), (5, 17), 2, 0)
    assert Step.prefill(7).pairs == 49


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_that_are_counted_on_meta_are_those_that_run(family):
    model = tiny_model(family, 17).module()
    engine = Phase1(model, None)
    batch = engine.whole([5, 6, 7, 8], [])
    with torch.inference_mode(), Traffic(model) as traffic:
        engine.forward(batch)
    counted = operations.eager(engine.config, 4, 1, 8)
    assert counted.products == traffic.calls["products"]
    assert abs(counted.others - traffic.calls["others"]) <= 2  # masks; rows that are made for the step


def test_operators_grow_with_layers_and_not_with_tokens():
    config = tiny_model("llama", 17).config
    deep = replace(config, num_layers=2 * config.num_layers, windows=2 * config.windows)
    one, two = operations.eager(config, 1, 1, 4), operations.eager(deep, 1, 1, 4)
    assert two.products - 1 == 2 * (one.products - 1)
    assert operations.eager(config, 9, 1, 4).others == one.others
    assert operations.eager(config, 9, 1, 4).nbytes > 5 * one.nbytes


def test_a_lookup_reads_its_rows_and_not_the_table():
    config = replace(tiny_model("llama", 17).config, vocab_size=100_000)
    assert operations.eager(config, 1, 1, 4).nbytes < 4 * config.vocab_size
