"""Offloaded layers: where they are while a model is loaded, and what of them is in a buffer when."""

import pytest
import torch
from torch import nn

from minfer.core.config import ModelConfig
from minfer.core.device import CPU
from minfer.core.errors import OptionsError
from minfer.core.options import make_options
from minfer.course.machines.simulated import SimulatedDevice
from minfer.phase9 import Engine, StreamOptions
from minfer.phase9.host_weights import HostWeights
from tests.phase9.streams import deep


@pytest.mark.parametrize(
    ("layers", "count", "chosen"),
    [(6, 0, []), (6, 1, [3]), (6, 2, [1, 4]), (30, 3, [5, 15, 25]), (7, 3, [1, 3, 5]), (4, 4, [0, 1, 2, 3])],
)
def test_offloaded_layers_are_evenly_spaced(layers, count, chosen):
    assert StreamOptions(offload_layers=count).offloaded(layers) == chosen


@pytest.mark.parametrize("layers", range(1, 13))
def test_as_many_layers_as_asked_are_offloaded(layers):
    for count in range(layers + 1):
        assert len(set(StreamOptions(offload_layers=count).offloaded(layers))) == count
    with pytest.raises(OptionsError, match=f"^offload_layers = {layers + 1}: the model has {layers} layers: give at m"):
        StreamOptions(offload_layers=layers + 1).offloaded(layers)


def test_graphs_and_moving_weights_exclude_each_other():
    assert StreamOptions(offload_layers=2).graph_batch == 0
    assert StreamOptions().graph_batch is None
    with pytest.raises(OptionsError, match=r"^graph_batch = 3 with offload_layers = 2: a graph is recorded"):
        StreamOptions(offload_layers=2, graph_batch=3)


class Card(CPU):
    """Where weights are said to go."""

    torch_device = torch.device("meta")


@pytest.mark.parametrize(("family", "prefix"), [("llama", "layers"), ("gpt2", "h")])
def test_an_offloaded_layer_is_loaded_to_the_host_and_all_else_to_the_card(lab, family, prefix):
    config: ModelConfig = deep(lab, family, 6).config
    options = make_options(StreamOptions, {"device": Card(), "offload_layers": 2})
    for number in range(6):
        name = f"{prefix}.{number}.mlp.weight"
        assert Engine.home(name, config, options).type == ("cpu" if number in (1, 4) else "meta")
    for name in ("embed_tokens.weight", "wte.weight", "norm.weight", "lm_head.weight"):
        assert Engine.home(name, config, options).type == "meta"


def test_a_folder_is_loaded_with_layers_on_the_host(lab, tmp_path):
    model = deep(lab, layers=4)
    engine = lab.load(Engine, model.save(tmp_path / "deep"), offload_layers=3, num_blocks=20, block_size=4)
    (run,) = lab.run(engine, lab.prompt(model, 5), lab.params(6))
    lab.follows(run, model, "offload", "loaded a folder with 3 of 4 layers on the host")


def test_a_layer_comes_back_bit_by_bit_whatever_it_is_made_of():
    layer = nn.Module()
    made = {"odd": torch.randn(3, 5), "short": torch.randn(7).half(), "codes": torch.arange(-3, 4, dtype=torch.int8)}
    for name, tensor in made.items():
        layer.register_parameter(name, nn.Parameter(tensor.clone(), requires_grad=False))
    layer.register_buffer("turned", torch.randn(4, 6).t())
    made["turned"] = layer.turned.clone()
    device = SimulatedDevice()
    weights = HostWeights(layer, device)
    buffer = torch.full((weights.nbytes + 256,), 77, dtype=torch.uint8)
    weights.bind(buffer)
    buffer[: weights.nbytes].copy_(weights.bytes)
    for name, tensor in made.items():
        got = getattr(layer, name)
        assert torch.equal(got, tensor)
        assert (got.data_ptr() - buffer.data_ptr()) % 256 == 0
    assert buffer[weights.nbytes :].eq(77).all()


def fetches(engine, prompt, params):
    """The numbers of the layers that are fetched while a request is answered."""
    seen, stream = [], engine.weights.stream
    enter = stream.__class__.__enter__

    class Noted(stream.__class__):
        def __enter__(self):
            seen.append(1)
            return enter(self)

    stream.__class__ = Noted
    engine.generate([prompt], params)
    return len(seen)


@pytest.mark.parametrize(("count", "each"), [(1, 0), (2, 0), (3, 2), (4, 4), (6, 6)])
def test_what_is_in_a_buffer_is_not_fetched_again(lab, count, each):
    """Two layers fit into the buffers, and are never fetched; of three, the two that share a buffer are."""
    model = deep(lab, layers=6)
    engine = lab.engine(Engine, model, offload_layers=count, num_blocks=20, block_size=4)
    steps = 5
    assert fetches(engine, lab.prompt(model, 4), lab.params(steps)) == each * steps


def test_a_step_that_breaks_off_leaves_the_weights_in_order(lab):
    model = deep(lab, layers=6)
    engine = lab.engine(Engine, model, offload_layers=6, num_blocks=20, block_size=4)
    broken, calls = engine.model.layers[3], []

    def breaks(block):
        calls.append(block is broken)
        if sum(calls) == 2:
            calls.append(True)
            raise ArithmeticError("planted")
        return type(engine.weights).will_run(engine.weights, block)

    engine.model.will_run = breaks
    prompt = lab.prompt(model, 4)
    with pytest.raises(ArithmeticError):
        engine.generate([prompt], lab.params(6))
    (run,) = lab.run(engine, prompt, lab.params(6))
    assert run.token_ids == model.oracle.greedy(prompt, 6)[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="fetches weights beside a card's work: there is none")
@pytest.mark.parametrize("scheme", [None, "int8", "int4", "fp8"])
def test_a_card_answers_the_same_with_layers_on_the_host(lab, scheme):
    model = deep(lab, layers=6)
    prompts = [lab.prompt(model, length) for length in (5, 9, 2)]
    answers = []
    for count in (0, 3, 6):
        options = {"offload_layers": count, "num_blocks": 40, "block_size": 4, "device": "cuda", "compiler": "none"}
        options |= {"graph_batch": 0, "quantization": scheme}
        module = model.module(torch.float64 if scheme is None else torch.bfloat16)
        engine = Engine(module.to("cuda"), None, make_options(StreamOptions, options))
        answers.append([one.token_ids for one in engine.generate(prompts, lab.params(9))])
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
