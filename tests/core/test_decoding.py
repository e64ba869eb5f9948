"""A decode step's attention as sums: the formula, with every size its own, and the graphs that it is compiled to."""

import pytest
import torch

from minfer.core.device import Device
from minfer.core.params import SamplingParams
from minfer.course.lab.tiny import tiny_model
from minfer.course.machines.compiles import Compiles
from minfer.phase6 import QuantizedLinear, find_scheme
from minfer.phase7 import Engine, FusionOptions
from minfer.phase7.decoding import alike, attend_rows, without_guards
from minfer.phase7.fused_model import fused
from minfer.phase7.product import product

HEADS, GROUP, WIDTH, SLOTS = 2, 3, 10, 40
OPTIONS = FusionOptions(device="cpu", compiler=Compiles.name, num_blocks=60)


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_attend_to_their_own_slots_and_to_what_they_see(rows):
    draw = torch.Generator().manual_seed(rows)
    q = torch.randn(rows, HEADS, GROUP, WIDTH, generator=draw, dtype=torch.float64)
    keys, values = torch.randn(2, SLOTS, HEADS, WIDTH, generator=draw, dtype=torch.float64)
    context = torch.stack([torch.randperm(SLOTS, generator=draw)[:7] for _ in range(rows)])
    seen = torch.arange(7) <= torch.arange(rows)[:, None] + 2
    made = attend_rows(q, keys, values, context, seen, WIDTH**-0.5)
    for row in range(rows):
        own = context[row, : row + 3]
        for head in range(HEADS):
            for member in range(GROUP):
                weights = torch.softmax(keys[own, head] @ q[row, head, member] / WIDTH**0.5, 0)
                torch.testing.assert_close(made[row, head, member], weights @ values[own, head])


@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_compiled_decoding_answers_as_the_oracle_and_compiles_nothing_later(family, block_size):
    model, seen = tiny_model(family, 17, layers=3), Compiles()
    options = FusionOptions(device="cpu", compiler=Compiles.name, block_size=block_size, num_blocks=60, max_batch=3)
    engine = Engine(model.module(torch.float64), None, options)
    warm = seen.graphs
    assert warm == 3
    prompts = [[5], [9, 31, 7, 11, 2], [4, 8, 15]]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    answers = [done.token_ids for done in engine.generate(prompts, params)]
    assert answers == [model.oracle.greedy(prompt, 6)[0] for prompt in prompts]
    assert engine.generate([[5]], SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=1))[0].token_ids
    assert seen.graphs == warm


@pytest.mark.parametrize("scheme", ["fp16", "int8", "int4"])
def test_quantised_products_are_alike_whatever_kernel_is_behind_them(scheme):
    device, made = Device.get("cpu"), []
    for _ in range(2):
        layer = QuantizedLinear.from_linear(torch.nn.Linear(512, 32), find_scheme(scheme))
        layer.pack(device, torch.float32)
        made.append(product(layer, device))
    assert alike(made)


def test_a_region_that_was_called_is_called_again_without_asking_dynamo_unless_it_has_two_graphs(monkeypatch):
    def region(x):
        return x + 1

    made, seen = torch.compile(region, backend=Compiles.name, dynamic=True, fullgraph=True), Compiles()
    assert without_guards(made) is made  # not called yet
    assert without_guards(region) is region
    x = torch.arange(3.0)
    made(x)
    again = without_guards(made)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(again(torch.arange(5.0)), torch.arange(5.0) + 1)
    assert (again is not made, seen.graphs, seen.calls) == (True, 1, 2)
    with monkeypatch.context() as patch:
        patch.delattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list")
        assert without_guards(made) is made
    made(x.double())
    assert without_guards(made) is made


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_layers_are_alike_until_one_has_another_constant_or_another_kind_of_tensor(family):
    def bias(block):
        block.o_proj.bias = torch.nn.Parameter(torch.zeros(1)) if block.o_proj.bias is None else None

    changes = {
        "a number": lambda block: setattr(block, "head_dim", block.head_dim + 1),
        "an activation": lambda block: setattr(block, "activation", torch.relu),
        "a bias": bias,
        "a dtype": lambda block: block.o_proj.to(torch.float32),
        "a module": lambda block: setattr(block, "o_proj", torch.nn.Identity()),
    }
    assert alike(fused(tiny_model(family, 17).module()).layers)
    for change in changes.values():
        layers = fused(tiny_model(family, 17).module()).layers
        change(layers[-1])
        assert not alike(layers)


def test_a_model_that_is_converted_afterwards_is_compiled_anew():
    """A graph of float64 would read float32 as if it were that."""
    model, seen = tiny_model("llama", 17), Compiles()
    engine = Engine(model.module(), None, OPTIONS)
    warm = seen.graphs
    engine.model.float()
    engine.dtype = torch.float32
    engine.allocate()
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    assert engine.generate([[5, 9, 31]], params)[0].token_ids == model.oracle.greedy([5, 9, 31], 6)[0]
    assert seen.graphs > warm


def test_a_model_that_is_exchanged_brings_its_own_graphs():
    first, other = (Engine(tiny_model(family, 17).module(), None, OPTIONS) for family in ("llama", "biased"))
    first.model = other.model
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    assert first.generate([[5, 9, 31]], params)[0].token_ids == tiny_model("biased", 17).oracle.greedy([5, 9, 31], 6)[0]
