"""PartClock: each second is counted once, and is the part's that takes it; an engine is afterwards as it was."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from minfer.bench.contestants import EngineContestant
from minfer.bench.part_clock import PARTS, PartClock
from minfer.bench.simulation import Simulated
from minfer.bench.variants import ClockedContestant
from minfer.bench.workloads import batch
from minfer.core import attention as core_attention
from minfer.core.model import RMSNorm
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
