"""Real steps: the clock counts each second once and changes nothing; sizes are met; rates are found again."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from minfer.bench.contestants import EngineContestant
from minfer.bench.variants import BLOCK, ClockedContestant
from minfer.bench.workloads import batch
from minfer.core import attention as core_attention
from minfer.core.checkpoint.shapes import random_config
from minfer.core.model import RMSNorm
from minfer.cost import real_steps
from minfer.cost.check import DECODES, PREFILLS, decoded
from minfer.cost.cost_model import CostModel, Setup
from minfer.cost.fitting import Fit
from minfer.cost.formulas import Formulas, Step
from minfer.cost.hardware import Curve, EngineRates, Hardware, Line
from minfer.cost.part_clock import PARTS, PartClock
from minfer.cost.real_steps import RealStep, RealSteps
from minfer.cost.simulation import Nothing, Simulated
from minfer.course.lab.tiny import tiny_model
from minfer.phase5 import paged_kv_cache
from minfer.phase5.paged_kv_cache import PagedAttention
from minfer.phase7.fused_model import FusedModel
from minfer.phase7.product import PRODUCTS, PackedLinear, Product

OPTIONS = {4: {"max_batch": 3}, 5: {"max_batch": 3, "num_blocks": 64}, 7: {"num_blocks": 64, "compiler": "none"}}
OPTIONS[6] = {"num_blocks": 64, "quantization": "int8"}
PRODUCT, ATTEND, GATHER, WAIT, NORM, EMBED = 3.0, 5.0, 7.0, 11.0, 13.0, 17.0  # seconds


@pytest.fixture
def device(monkeypatch):
    """One on which these take prescribed times: products, attention, gathering, norms, embeddings; nothing else any."""
    device = Simulated()

    def slow(owner, name, seconds):
        work = getattr(owner, name)

        def run(*args, **kwargs):
            device.now += seconds
            return work(*args, **kwargs)

        monkeypatch.setattr(owner, name, run)

    slow(F, "linear", PRODUCT)
    slow(PackedLinear, "forward", PRODUCT)
    for module in (core_attention, paged_kv_cache):
        slow(module, "attend", ATTEND)
    slow(PagedAttention, "gather", GATHER)
    slow(RMSNorm, "forward", NORM)
    slow(F, "embedding", EMBED)
    return device


def contestant(phase, device, kind=ClockedContestant, family="llama"):
    module = tiny_model(family, 17).module(torch.float32)
    return kind(phase, module, device=device, **OPTIONS[phase])


@pytest.mark.parametrize("phase", [4, 5, 7])
def test_each_second_is_counted_once_and_is_the_part_s_that_takes_it(device, phase):
    made = contestant(phase, device)
    layers, work = made.engine.config.num_layers, batch(17, 3, 6, 4)
    run = made.run(work)
    steps = run.facts["steps"]
    products = 7 if phase < 7 else 4  # in a layer
    gathered = 0 if phase == 4 else (steps - 1) * layers  # a prompt reads what it brings
    calls = layers * (steps if phase == 4 else steps - 1 + 3)  # in the first step each prompt has its own
    found = {name: run.facts[f"{name}_s"] for name in PARTS}
    head = PRODUCT * steps if phase < 7 else found["head"]  # there it is a product of another form
    norms = 2 * layers + 1 if phase < 7 else 2 * layers - 1  # the first and the last run outside of regions
    assert found == {
        "layers": PRODUCT * products * layers * steps,
        "head": head,
        "attention": ATTEND * calls,
        "gather": GATHER * gathered,
        "others": steps * (EMBED + NORM * norms),
        "communication": 0.0,
    }
    beside = NORM * steps * (2 * layers + 1 - norms)
    assert run.facts["forward_s"] == run.duration == sum(found.values()) + beside


def test_products_that_are_neither_packed_nor_compiled_are_timed_too(device, monkeypatch):
    """A machine without oneDNN, most Macs: the layers of phase 7 stay plain ones."""
    monkeypatch.setattr(PackedLinear, "serves", staticmethod(lambda weight: False))
    made = contestant(7, device)
    run = made.run(batch(17, 1, 6, 2))
    assert run.facts["layers_s"] == PRODUCT * 4 * made.engine.config.num_layers * 2  # two steps


def test_a_decode_step_that_is_one_loop_over_regions_is_timed_as_that(device, monkeypatch):
    monkeypatch.setattr(FusedModel, "decode", lambda self: setattr(device, "now", device.now + NORM))
    engine = contestant(7, device).engine
    with PartClock(engine) as clock:
        engine.model.decode()
    assert clock.seconds == dict.fromkeys(PARTS, 0.0) | {"others": NORM}


def test_what_a_part_waits_for_other_ranks_is_communication_and_nothing_else(device, monkeypatch):
    made = contestant(5, device, EngineContestant)
    groups = {name: SimpleNamespace(seconds=100.0) for name in ("tensor", "world", "host")}
    made.engine.ranks = SimpleNamespace(**groups, groups=tuple(groups.values()))
    waiting, linear = groups["tensor"], F.linear

    def dealt(*args, **kwargs):
        waiting.seconds += WAIT
        device.now += WAIT
        return linear(*args, **kwargs)

    monkeypatch.setattr(F, "linear", dealt)
    with PartClock(made.engine) as clock:
        before = clock.seconds
        made.run(batch(17, 1, 6, 2))
    found = {name: after - before[name] for name, after in clock.seconds.items()}
    products = 2 * (7 * made.engine.config.num_layers + 1)  # two steps
    assert found["communication"] == WAIT * products
    assert found["layers"] + found["head"] == PRODUCT * products


def test_where_the_device_works_beside_the_host_no_clock_is_believed(device, monkeypatch):
    monkeypatch.setattr(Simulated, "works_beside_host", True)
    run = contestant(5, device).run(batch(17, 1, 6, 2))
    assert "forward_s" in run.facts
    assert not {f"{name}_s" for name in PARTS} & run.facts.keys()


@pytest.mark.parametrize(("phase", "family"), [(4, "llama"), (5, "gpt2"), (6, "llama"), (7, "llama"), (7, "gpt2")])
def test_an_engine_is_afterwards_as_it_was_and_says_the_same_under_the_clock(phase, family):
    made = contestant(phase, "cpu", EngineContestant, family)
    engine = made.engine
    kind = type(engine.cache.layers[0])
    methods = {name: vars(kind).get(name) for name in ("__call__", "gather")}
    prompts = [[5, 6, 7], [3, 4]]
    plain = [one.token_ids for one in engine.generate(prompts)]
    with PartClock(engine) as clock:
        assert [one.token_ids for one in engine.generate(prompts)] == plain
    assert all(clock.seconds[name] > 0 for name in ("layers", "head", "attention"))
    assert {name: vars(kind).get(name) for name in methods} == methods
    for part in engine.model.modules():
        assert "forward" not in vars(part)
        if isinstance(part, Product):
            assert part.multiply == part.behind() == PRODUCTS[int(part.handle)]
    seen = clock.seconds
    engine.generate(prompts)
    assert clock.seconds == seen, "it has stopped"


# ---- the steps -----------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    """Few requests of few tokens."""
    for name, value in {"BATCH": 4, "EACH": 2, "SHORT": 3, "PROMPTS": (5, 9), "WIDE": (2, 21), "MANY": (6, 2)}.items():
        monkeypatch.setattr(real_steps, name, value)


@pytest.fixture
def steps(few):
    """Of a real engine."""
    module = tiny_model("llama", 17).module(torch.float32)
    made = EngineContestant(5, module, **real_steps.OPTIONS, num_blocks=real_steps.blocks(16))
    return RealSteps(made, 17).all()


def test_requests_that_leave_one_by_one_have_steps_of_every_number_of_rows(steps):
    decodes = [step.sizes.tokens for step in steps if all(query == 1 for query in step.sizes.queries)]
    assert [decodes.count(rows) for rows in (4, 3, 2, 1)] == [2, 2, 2 + real_steps.LAST, 2]
    assert decodes[:8] == [4, 4, 3, 3, 2, 2, 1, 1]
    prompts = [step.sizes for step in steps if max(step.sizes.queries) > 1]
    assert prompts[:2] == [Step.prefill(5), Step.prefill(9)]
    assert [one.queries for one in prompts[2:]] == [(3,) * 4, (21,) * 2, (2,) * 6]
    assert max(step.sizes.rows for step in steps) == 6


def test_the_parts_of_a_step_are_inside_its_forward_and_that_inside_the_step(steps):
    for step in steps:
        assert step.beside >= step.parts["others"] > 0
        assert step.host > 0
        assert (step.parts["gather"] > 0) == (step.sizes.gathered > 0)


def test_batches_are_cut_to_a_context_and_the_pool_holds_the_largest(few):
    assert real_steps.batches_within(10**6)[2] == [(3, 3), (3, 5), (3, 7), (3, 9)]
    for context in (4, 8, 16, 10**6):
        for made in real_steps.batches_within(context):
            assert all(tokens > 0 and tokens + new <= context for tokens, new in made)
            assert sum(-(-(tokens + new) // 4) for tokens, new in made) <= real_steps.blocks(4)


def test_none_of_the_steps_is_one_that_the_check_predicts():
    nothing = Nothing(random_config("smollm2-135m"))
    made = EngineContestant(5, nothing, **real_steps.OPTIONS, num_blocks=real_steps.blocks(BLOCK), block_size=BLOCK)
    met = {step.sizes for step in RealSteps(made, 17).all()}
    assert len(met) > 20
    assert not met & {decoded(*cell) for cell in DECODES}
    assert not met & {Step.prefill(tokens) for tokens in PREFILLS}


# ---- rates from steps ----------------------------------------------------------------------------------------------

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
