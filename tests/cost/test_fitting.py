"""Fitting: the rates that steps were made with are found again, and predict them."""

import pytest

from minfer.bench.part_clock import PARTS
from minfer.calibration.fitting import Fit
from minfer.calibration.real_steps import RealStep
from minfer.cost.cost_model import CostModel, Setup
from minfer.cost.formulas import Formulas, Step
from minfer.cost.hardware import Curve, EngineRates, Hardware, Line
from minfer.course.lab.tiny import tiny_model

CONFIG = tiny_model("llama", 17).config
KNOWN = EngineRates(
    layers=Curve(((1, 2e-7), (2, 3e-7), (3, 7e-7), (20, 9e-7), (40, 2e-6))),
    head=Curve(((1, 5e-7), (2, 6e-7), (3, 8e-7))),
    beside=Curve(((1, 2e-3), (2, 3e-3), (3, 5e-3), (20, 7e-3), (40, 8e-3))),
    prefill=Line(4e-4, 5e-8),
    decode=Line(6e-4, 7e-7),
    gather=Line(8e-5, 9e-8),
    host=Line(3e-3, 2e-4),
)
SIZES = [
    *(Step.decode([context] * batch, 16) for batch, context in ((1, 20), (1, 90), (2, 40), (3, 16), (3, 70))),
    *(Step.prefill(20), Step.prefill(40), Step((20, 20), (20, 20), 2)),
]


def made_of(rates, setup, sizes=SIZES, slower=1.0):
    """Steps that take what an engine of such rates takes, written down term by term."""
    layers, formulas = setup.config.num_layers, Formulas(setup.config)
    kv = 2 * setup.config.num_kv_heads * setup.config.head_dim * 4
    made = []
    for size in sizes:
        alone = max(size.queries) == 1
        attention = rates.decode.seconds(sum(size.contexts) * kv)
        if not alone:
            pairs = sum(query**2 for query in size.queries)
            flops = 4 * setup.config.num_heads * setup.config.head_dim * pairs
            attention = rates.prefill.seconds(flops, calls=len(size.queries))
        parts = dict.fromkeys(PARTS, 0.0)
        parts["layers"] = formulas.layer_weights * rates.layers.seconds(size.tokens)
        parts["head"] = formulas.head_weights * rates.head.seconds(size.rows)
        beside = layers * rates.beside.seconds(size.tokens)
        if alone and rates.compiled is not None:
            beside = layers * (rates.compiled.seconds(size.tokens) + attention)
        else:
            parts["attention"] = layers * attention
        if size.gathered and rates.compiled is None:
            parts["gather"] = layers * rates.gather.seconds(2 * size.gathered * kv)
        if rates.communication is not None:
            moved = 4 * (size.tokens * 2 * layers * setup.config.hidden_size + size.rows * setup.config.vocab_size / 2)
            parts["communication"] = rates.communication.seconds(moved)
        parts = {name: slower * seconds for name, seconds in parts.items()}
        forward = sum(parts.values()) + slower * beside
        made.append(RealStep(size, forward + slower * rates.host.seconds(len(size.queries)), forward, parts))
    return made


def changed(**lines):
    return EngineRates(**{**vars(KNOWN), **lines})


COMPILED = changed(
    compiled=Line(1e-3, 2e-5),
    decode=Line(0.0, 7e-7),
    gather=Line(0.0, 0.0),
    beside=Curve(((20, 7e-3), (40, 8e-3))),
)


@pytest.mark.parametrize(
    ("setup", "rates"),
    [
        (Setup(CONFIG, 5), KNOWN),
        (Setup(CONFIG, 7), COMPILED),
        (Setup(CONFIG, 5, ranks=2), changed(communication=Line(2e-2, 3e-9))),
    ],
)
def test_the_rates_of_steps_are_found_again_and_predict_them(setup, rates):
    machine = Hardware("x", "x", 1e12, 1e12, {"float32": 1e12}, 0.0)
    steps = made_of(rates, setup)
    found = Fit(setup, machine, [made_of(rates, setup, slower=1.5), steps]).rates()  # one pass was disturbed
    for name, expected in vars(rates).items():
        value = getattr(found, name)
        if isinstance(expected, Curve):
            assert [at for at, _ in value.points] == [at for at, _ in expected.points]
            assert [took for _, took in value.points] == pytest.approx([took for _, took in expected.points])
        elif expected is None:
            assert value is None
        else:
            assert (value.call, value.per) == pytest.approx((expected.call, expected.per), rel=1e-6, abs=1e-15), name
    model = CostModel(setup, Hardware("x", "x", 1e12, 1e12, {"float32": 1e12}, 0.0, engines={setup.kernels: found}))
    for step in steps:
        assert model.step(step.sizes).total == pytest.approx(step.seconds, rel=1e-6)
