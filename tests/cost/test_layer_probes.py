"""The probes of layers: what they leave out is left out, and what they time is what a step would do."""

import pytest
import torch

from minfer.core.device import Device
from minfer.cost import layer_probes, probes
from minfer.cost.cost_model import COMPILED, CostModel, Setup
from minfer.cost.counting import Traffic
from minfer.cost.formulas import Step
from minfer.cost.hardware import Hardware, Line
from minfer.course.lab.tiny import tiny_model
from minfer.phase7 import Engine

FAMILIES = ("llama", "gpt2")
CPU = Device.get("cpu")


def attended(q, k, v):
    return q


def fused(config):
    options = Engine.Options(num_blocks=8, max_batch=1, compiler="none")
    return Engine(layer_probes.short(config), None, options).model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("made", [layer_probes.short, fused])
def test_a_model_without_products_has_all_operators_but_those(family, made):
    config = tiny_model(family, 17).config
    ids = torch.zeros(3, dtype=torch.int64)
    calls = []
    for change in (lambda model: model, layer_probes.without_products):
        model = change(made(config))
        with torch.inference_mode(), Traffic(model) as traffic:
            model(ids, ids, [attended] * layer_probes.LAYERS, ids[:1])
        calls.append(traffic.calls)
    assert calls[0]["others"] == calls[1]["others"]
    layers = list(probes.blocks_of(model).modules())
    assert not any(isinstance(part, probes.LAYERS) for part in layers)
    given = [part for part in layers if isinstance(part, layer_probes.Given)]
    assert len(given) == calls[0]["products"] - 1, "all but the head"


def test_what_is_decoded_is_the_last_token_of_each_request_over_blocks_of_its_own():
    config = layer_probes.short(tiny_model("llama", 17).config).config
    step = layer_probes.paged(config, 3, 48, CPU).step
    assert step.context.shape == (3, 48)
    assert step.context.flatten().unique().numel() == 3 * 48
    assert torch.equal(step.slots, step.context[:, -1])
    assert all(mask.all() for mask in step.masks.values())


def test_products_in_place_take_what_a_forward_takes_less_what_lies_beside_them(monkeypatch):
    """On a clock that says 5 s for every forward."""
    model = layer_probes.short(tiny_model("llama", 17).config)
    alone = {("head", 1): 0.25 / probes.weights_in(model.lm_head)}
    monkeypatch.setattr(layer_probes, "head_products", lambda *_: alone)
    monkeypatch.setattr(layer_probes, "seconds", lambda work, device: 5.0)
    found = layer_probes.products_in_place(model, torch.float32, Line(0.1, 0.01), CPU)
    weights = sum(map(probes.weights_in, probes.products_of(model)))
    for rows in probes.ROWS:
        beside = layer_probes.LAYERS * (0.1 + 0.01 * rows)
        assert found["layers", rows] == pytest.approx(max(1e-9, 5.0 - 0.25 - beside) / weights)
    assert found["head", 1] == alone["head", 1]


def test_attention_that_is_compiled_gathers_nothing_and_has_its_own_line():
    config = tiny_model("llama", 17).config
    line = Line(1e-3, 1e-6)
    made = Hardware(
        "x",
        "x",
        1e9,
        1e9,
        {"float32": 1e15},
        0.0,
        decode={"float32": Line(9.0, 9.0), COMPILED: line},
        prefill={"float32": Line(1.0, 1.0)},
    )
    step = Step.decode([40, 33], 16)
    terms = CostModel(Setup(config, 7), made).step(step)
    assert terms.copies == 0
    layer_bytes = 2 * 48 * 2 * config.num_kv_heads * config.head_dim * 4
    attention = config.num_layers * (1e-3 + 1e-6 * layer_bytes)
    reads = sum(product.nbytes for product in CostModel(Setup(config, 7), made).formulas.work(step).products) / 1e9
    assert terms.kv + terms.weights + terms.arithmetic == pytest.approx(attention + reads)
    mixed = Step((1, 5), (40, 5), 2, 48)
    assert CostModel(Setup(config, 7), made).step(mixed).copies > 0
