"""Phase 8: which steps are replayed, by which graph, and what is said of the others."""

import json

from minfer.course.machines.simulated import SimulatedDevice
from tests.phase8.graphs import GraphServing, prompts_of


def test_P8_02_a_graph_has_room_for_every_row(engine_cls, lab):
    code, hint = "P8-02", "the smallest bucket that is not smaller; none: the step runs as it did without graphs"
    model = lab.model("qwen2")
    serving = GraphServing(engine_cls, lab, model, code, "", hint, max_batch=9, graph_batch=8)
    for count in range(1, 10):
        serving.did = f"{count} requests at once, graphs of up to 8 rows"
        serving.sequences.clear()
        for number in range(count):
            serving.submit(lab.prompt(model, 2 + number % 3), lab.params(4 + number % 2))
        serving.replays_decodes(most_rows=8)


def test_P8_13_a_graph_has_room_for_the_longest_row(engine_cls, lab):
    code, hint = "P8-13", "how many blocks has the longest table, and which bucket holds as many?"
    for family in ("mistral", "gpt2"):
        model = lab.model(family)
        for size in (1, 4, 16):
            options = {"block_size": size, "num_blocks": 4 * model.context // size, "max_batch": 4}
            serving = GraphServing(engine_cls, lab, model, code, "", hint, **options)
            borders = [width * size for width in (1, 2, 4, 8, 16) if 3 < width * size + 3 < model.context]
            for lengths in (*([max(border - 2, 1)] for border in borders), (borders[-1] - 1, 2), (model.context - 4,)):
                serving.did = f"{family}: blocks of {size}, prompts of {lengths} tokens, then 4 more"
                serving.sequences.clear()
                for prompt in prompts_of(lab, model, lengths):
                    serving.submit(prompt, lab.params(4))
                serving.replays_decodes(most_rows=4)


def test_P8_07_steps_with_chunks_of_prompts_are_not_replayed(engine_cls, lab):
    hint = "a graph has one row per request: a chunk of a prompt, alone or beside decodes, is computed without it"
    model = lab.model("mistral")
    lengths, counts = (9, 2, 13, 1, 6, 17), (6, 12, 3, 8, 5, 4)
    for chunk, budget in ((4, 16), (1, 6), (None, 9)):
        did = f"prompts of {lengths} tokens, one every second step, chunks of {chunk or 'any size'}, budget {budget}"
        options = {"chunk_size": chunk, "token_budget": budget, "max_batch": 6, "share_prefixes": True}
        serving = GraphServing(engine_cls, lab, model, "P8-07", did, hint, **options)
        for prompt, count in zip(prompts_of(lab, model, lengths), counts, strict=True):
            serving.submit(prompt, lab.params(count, prompt_logprobs=1 if len(prompt) == 6 else None))
            for _ in range(2):
                serving.step()
        serving.replays_decodes(most_rows=6)


def test_P8_07_decodes_are_replayed_under_preemption(engine_cls, lab):
    hint = "a request that comes back computes its prompt and its answer again: that is a chunk, not a decode"
    model = lab.model()
    for chunk in (None, 3):
        did = f"four requests on a pool for two, chunks of {chunk or 'any size'}"
        serving = GraphServing(engine_cls, lab, model, "P8-07", did, hint, num_blocks=9, max_batch=4, chunk_size=chunk)
        for prompt, count in zip(prompts_of(lab, model, (9, 7, 8, 4)), (14, 12, 13, 15), strict=True):
            serving.submit(prompt, lab.params(count))
        serving.replays_decodes(most_rows=4)
        serving.equal(serving.state["preemptions"] > 0, True, "looked whether any request had to give way")


def test_P8_10_what_was_replayed_and_what_was_not(engine_cls, lab):
    code, hint = "P8-10", "a step that fits no graph is right, but slow: count it, and say why"
    model = lab.model()
    did = "three requests, graphs of up to 4 rows"
    serving = GraphServing(engine_cls, lab, model, code, did, hint, graph_batch=4, max_batch=6)
    serving.serve(prompts_of(lab, model, (4, 3, 5)), lab.params(6))
    _adds_up(serving)
    padded = serving.engine.graph_usage()["padded_rows"]
    serving.equal(padded, 0.25, "looked at padded_rows")
    serving.equal(set(serving.engine.graph_usage()["eager"]), {"prefill"}, "looked at the reasons in eager")
    serving.did += ", then six at once"
    serving.serve(prompts_of(lab, model, (4, 3, 5, 2, 6, 4)), lab.params(6))
    _adds_up(serving)
    serving.equal(serving.engine.graph_usage()["eager"].get("rows"), 5, "counted the decodes of 6 rows in eager")
    serving = GraphServing(engine_cls, lab, model, code, "graph_batch=0", hint, graph_batch=0)
    serving.serve(prompts_of(lab, model, (4, 3)), lab.params(4))
    serving.equal([serving.device.captures, serving.device.replays], [0, 0], "counted graphs and replays")
    _adds_up(serving)


def _adds_up(serving):
    """Every step is counted once."""
    __tracebackhide__ = True
    usage = serving.engine.graph_usage()
    json.dumps(usage)
    serving.equal(usage["replays"], serving.device.replays, "looked at replays, beside those of the device")
    steps = usage["replays"] + sum(usage["eager"].values())
    serving.equal(steps, serving.steps, "added up replays and eager, and counted the steps")


def test_P8_12_the_pool_leaves_room_for_the_graphs(engine_cls, lab):
    hint = "recording a step takes what the step takes, keys and values of every row of a layer at least"
    model = lab.model()
    per_block = 4 * model.config.kv_numbers_per_token * 8
    device = SimulatedDevice(free=200 * per_block)  # less than is wanted
    engine = lab.engine(engine_cls, model, device=device, memory_share=1.0, max_batch=32, token_budget=64, block_size=4)
    pool = engine.cache.pool.nbytes
    largest = max(tensor.nbytes for graph in device.graphs for tensor in graph.tape.made) if device.graphs else 0
    did = f"memory_share=1.0 of {device.free:,} free bytes; looked at the pool's {pool:,}"
    left = device.free - pool
    lab.check(left >= 2 * largest, "P8-12", did, f"{2 * largest:,} beside it", f"{left:,}", hint)
    lab.check(pool > device.free // 2, "P8-12", did, "most of them", f"{pool:,}", hint)
