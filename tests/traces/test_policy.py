"""How minfer's own scheduler goes about it, where other right ones may do otherwise."""

import pytest

from minfer.phase5 import Engine
from tests.phase5.serving import Serving
from tests.phase5.test_prefixes import long_model


@pytest.fixture
def model(lab):
    return lab.model("mistral")


def serving(lab, model, **options):
    return Serving(Engine, lab, model, "policy", "the reference", **{"block_size": 4, "num_blocks": 40, **options})


def test_a_long_prompt_is_computed_in_chunks_beside_the_decodes_of_others(lab, model):
    service = serving(lab, model, chunk_size=5, token_budget=16)
    running = [service.submit(lab.prompt(model, 3), lab.params(12)) for _ in range(2)]
    service.step()
    long = service.submit(lab.prompt(model, 23), lab.params(3))
    for chunk in (5, 5, 5, 5, 3):
        said = [len(sequence.output_ids) for sequence in running]
        forwards = len(service.engine.record.forwarded)
        service.step()
        assert [len(sequence.output_ids) for sequence in running] == [count + 1 for count in said]
        assert service.engine.record.forwarded[forwards:] == [2 + chunk]
        kinds = [(entry["id"], entry["tokens"], entry["kind"]) for entry in service.state["step"]]
        assert kinds == [*((one.id, 1, "decode") for one in running), (long.id, chunk, "prefill")]
    assert len(long.output_ids) == 1
    service.drain()
    service.right()


def test_every_running_request_gets_its_token_out_of_the_budget_before_any_prompt(lab, model):
    service = serving(lab, model, token_budget=4, max_batch=4)
    for length in (1, 1, 9, 7):
        service.submit(lab.prompt(model, length), lab.params(20 if length == 1 else 3))
    while any(not sequence.output_ids for sequence in service.sequences):
        service.step()
        counts = [entry["tokens"] for entry in service.state["step"]]
        assert sum(counts) == 4
        assert counts[:2] == [1, 1]
    service.drain()
    service.right()


def test_who_came_last_gives_way_first_and_comes_back_first(lab, model):
    service = serving(lab, model, num_blocks=9, share_prefixes=False, max_batch=3)
    first, second, third = (service.submit(lab.prompt(model, 8), lab.params(14)) for _ in range(3))
    late = service.submit(lab.prompt(model, 2), lab.params(2))
    service.until(lambda: service.state["preemptions"] == 1)
    assert (service.state["running"], service.state["waiting"]) == ([first.id, second.id], [third.id, late.id])
    service.until(lambda: service.state["preemptions"] == 2)
    assert (service.state["running"], service.state["waiting"]) == ([first.id], [second.id, third.id, late.id])
    service.drain()
    service.right()


def test_who_gave_way_finds_again_what_its_blocks_still_hold(lab, model):
    service = serving(lab, model, num_blocks=7)
    first, second = (service.submit(lab.prompt(model, 9), lab.params(12)) for _ in range(2))
    service.until(lambda: first.finished)
    assert service.state["preemptions"] == 1
    before = service.state["shared_tokens"]
    service.until(lambda: second.id in service.state["running"])
    assert service.state["shared_tokens"] > before
    service.drain()
    service.right()


def test_a_common_prefix_is_computed_once_even_by_those_that_come_together(lab):
    """Blocks can be shared in the very step that fills them, since every layer stores before it reads."""
    model = long_model(lab, 280)
    prefix = lab.prompt(model, 256)
    service = serving(lab, model, block_size=16, num_blocks=300)
    for i in range(16):
        service.submit(prefix + lab.prompt(model, 1 + i % 4), lab.params(1))
    service.step()
    computed = sum(service.engine.record.forwarded)
    assert computed == 256 + 4 * (1 + 2 + 3 + 4)
    assert computed < 0.1 * sum(sequence.num_prompt for sequence in service.sequences)
    service.sequences = service.sequences[:4]
    service.right()
    service.empty()
