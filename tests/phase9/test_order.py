"""Phase 9: what comes before what: copies, tokens, weights; and who waits for whom."""

import pytest

from tests.phase9.streams import StreamServing, deep, prompts_of


def test_P9_01_tokens_are_read_when_they_are_there(engine_cls, lab):
    hint = "the copy waits for what draws the tokens, the host for the copy: a moment of one, followed by the other"
    for family in ("llama", "gpt2"):
        model = lab.model(family)
        serving = StreamServing(engine_cls, lab, model, "P9-01", f"{family}: three requests", hint)
        serving.serve(prompts_of(lab, model, (5, 9, 3)), [lab.params(count) for count in (6, 9, 4)])


def test_P9_02_what_is_on_its_way_is_not_overwritten(engine_cls, lab):
    hint = "a copy reads later than it is queued, and the next step is queued before the last one's tokens are read"
    model = lab.model()
    serving = StreamServing(engine_cls, lab, model, "P9-02", "requests that come and go", hint, max_batch=3)
    for length, count in ((3, 9), (6, 3), (2, 7), (5, 2), (4, 4)):
        serving.submit(lab.prompt(model, length), lab.params(count))
    serving.drain()
    serving.right()


def test_P9_04_a_moment_comes_after_the_work_that_it_stands_for(engine_cls, lab):
    hint = "a moment covers what was queued before it was asked for: ask after the work, on the stream that does it"
    model = lab.model("mistral")
    did = "prompts in chunks of 4 beside decodes, replayed as graphs"
    options = {"chunk_size": 4, "graph_batch": 3, "num_blocks": 24, "max_batch": 3}
    serving = StreamServing(engine_cls, lab, model, "P9-04", did, hint, **options)
    serving.serve(prompts_of(lab, model, (2, 9, 6)), [lab.params(count) for count in (9, 4, 6)])
    serving.equal(serving.device.replays > 3, True, "looked whether more than 3 steps were replayed")


def test_P9_06_the_card_always_has_something_to_do(engine_cls, lab):
    hint = "launch the next step first, then wait for the last one's tokens, and for nothing else"
    model = lab.model()
    serving = StreamServing(engine_cls, lab, model, "P9-06", "three requests of 9 tokens", hint)
    for prompt in prompts_of(lab, model, (5, 2, 7)):
        serving.submit(prompt, lab.params(9))
    device = serving.device
    for number in range(8):
        waits, stalls = device.waits, device.stalls
        serving.step()
        serving.equal(device.waits - waits <= 1, True, f"counted {device.waits - waits} waits in step {number + 1}")
        serving.equal(device.stalls - stalls, 0, f"counted the waits in step {number + 1} for all that was queued")
    serving.equal(device.synchronizations, 0, "counted the waits for the whole device")
    serving.drain()
    serving.right()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_P9_21_weights_are_used_when_they_are_there(engine_cls, lab, family):
    hint = "the model's stream follows the copy of a layer's weights before the layer computes"
    model = deep(lab, family)
    for count in (1, 2, 4, 5):
        did = f"{family} of 5 layers, {count} of them offloaded"
        serving = StreamServing(engine_cls, lab, model, "P9-21", did, hint, offload_layers=count)
        serving.serve(prompts_of(lab, model, (5, 2)), [lab.params(count) for count in (5, 3)])


def test_P9_22_weights_are_not_overwritten_while_they_are_used(engine_cls, lab):
    hint = "a buffer takes the next layer's weights only after the layer that had it has computed: follow that moment"
    model = deep(lab, layers=6)
    for count in (4, 5, 6):
        did = f"6 layers, {count} of them offloaded, two buffers"
        serving = StreamServing(engine_cls, lab, model, "P9-22", did, hint, offload_layers=count)
        serving.serve(prompts_of(lab, model, (4, 6)), lab.params(4))
