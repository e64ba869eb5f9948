"""Phase 8: the memory that graphs read and write: what is filled, what padding touches, what stays where it is."""

import copy

import numpy as np
import pytest

from tests.phase8.graphs import GraphServing, prompts_of


def test_P8_01_every_buffer_is_filled_before_each_replay(engine_cls, lab):
    code, hint = "P8-01", "a graph reads the addresses that it was recorded with: copy into them, do not rebind them"
    for family in ("llama", "qwen2-windows", "gpt2"):
        model = lab.model(family)
        serving = GraphServing(engine_cls, lab, model, code, f"{family}: three requests, then two others", hint)
        for lengths, counts in (((5, 9, 3), (9, 14, 5)), ((2, 6), (4, 8))):
            serving.sequences.clear()
            serving.serve(prompts_of(lab, model, lengths), [lab.params(count) for count in counts])
        serving.equal(serving.device.replays > 10, True, "looked whether more than 10 steps were replayed")


@pytest.mark.points(needs="P8-01")
def test_P8_03_padding_touches_nobody(engine_cls, lab):
    """Ten blocks for four requests: what the last one leaves is soon another's, while its row is padding."""
    code, hint = "P8-03", "where do rows that only fill up a bucket write? and rows that an earlier step has filled?"
    model = lab.model()
    did = "batches of 4, 3 and 1, then of 3 requests again, on 10 blocks of 4"
    serving = GraphServing(engine_cls, lab, model, code, did, hint, num_blocks=10, max_batch=4)
    arrivals = {0: ((6, 11), (2, 12), (2, 11), (2, 2)), 12: ((3, 14),), 17: ((2, 6), (5, 5))}
    sizes = []
    while serving.unfinished or serving.steps in arrivals:
        for length, count in arrivals.get(serving.steps, ()):
            serving.submit(lab.prompt(model, length), lab.params(count))
        before, held = serving.engine.cache.pool.clone(), serving.state["tables"]
        cached = {sequence.id: sequence.num_cached for sequence in serving.sequences}
        serving.step()
        sizes.append(len(serving.counts))
        _wrote_only_its_tokens(serving, before, held, cached)
    serving.equal(set(sizes), {1, 2, 3, 4}, "looked at the sizes of the batches")
    serving.empty()
    serving.right()


def _wrote_only_its_tokens(serving, before, held, cached):
    """In blocks that their owners had before it and still have, a step has changed the slots of its own tokens."""
    __tracebackhide__ = True
    state = serving.state
    step, size = state["step"], state["block_size"]
    changed = (serving.engine.cache.pool != before).flatten(4).any(-1).any(0).any(0)  # (blocks, block_size)
    own = set()
    for entry in step:
        table, first = held.get(entry["id"], []), cached[entry["id"]]
        own |= {(table[p // size], p % size) for p in range(first, first + entry["tokens"]) if p // size < len(table)}
    kept = {owner: table for owner, table in held.items() if state["tables"].get(owner, [])[: len(table)] == table}
    watched = {block for table in kept.values() for block in table}
    touched = [(b, slot) for b, slot in changed.nonzero().tolist() if b in watched and (b, slot) not in own]
    serving.equal(touched, [], f"after step {serving.steps} looked for slots (block, place) of others that changed")


@pytest.mark.points(needs="P8-01")
def test_P8_05_a_later_replay_changes_no_earlier_logits(engine_cls, lab):
    hint = "a graph writes its logits to the same memory at every replay: give out a copy"
    model = lab.model("mistral")
    for count in (1, 2, 3):
        did = f"kept what forward returned, for {count} requests"
        serving = GraphServing(engine_cls, lab, model, "P8-05", did, hint)
        forward, kept = serving.engine.forward, []

        def keeping(batch, forward=forward, kept=kept):
            logits = forward(batch)
            kept.append((logits, logits.clone()))
            return logits

        serving.engine.forward = keeping
        serving.serve(prompts_of(lab, model, range(3, 3 + count)), lab.params(7))
        serving.equal(serving.device.replays > 3, True, "looked whether more than 3 steps were replayed")
        for step, (logits, then) in enumerate(kept):
            serving.equal(logits.numpy(), then.numpy(), f"looked at the logits of step {step} when all was over")


def test_P8_08_captured_memory_stays(engine_cls, lab):
    code, hint = "P8-08", "a graph knows addresses: buffers and pool stay, or the graph goes with them"
    model = lab.model()
    serving = GraphServing(engine_cls, lab, model, code, "50 steps, requests coming and going", hint)
    for number in range(13):
        serving.submit(lab.prompt(model, 1 + number % 7), lab.params(4 + 3 * (number % 5)))
    while serving.unfinished or serving.steps < 50:
        if not serving.unfinished:
            serving.submit(lab.prompt(model, 6), lab.params(9))
        serving.step()
    serving.right()
    graphs = len(serving.device.graphs)
    serving.engine.allocate()
    serving.did = "called allocate() a second time"
    held = len(serving.device.graphs)
    serving.equal(held <= graphs, True, f"counted the graphs that are held, {held} after {graphs}")
    serving.sequences.clear()
    serving.serve(prompts_of(lab, model, (5, 9, 3)), lab.params(6))


@pytest.mark.points(needs="P8-01")
def test_P8_09_what_padding_computes_stays_with_it(engine_cls, lab):
    """Every token that occurs nowhere has NaN for an embedding: so rows of padding that hold one of them are NaN."""
    code, hint = "P8-09", "0 · NaN is NaN, under any mask: may a request's row read what a padding row has written?"
    counts = (9, 12, 12, 5)
    model, prompts, bare = _model_without_other_tokens(lab, (2, 9, 3, 13), counts)
    did = "three requests in buckets of 4 rows, then one more; tokens that nobody uses have NaN for an embedding"
    serving = GraphServing(engine_cls, lab, bare, code, did, hint, chunk_size=9)
    serving.model = model
    for number, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        if number == 3:  # comes later: its chunks are computed in mixed steps, after replays with padding
            for _ in range(3):
                serving.step()
        serving.submit(prompt, lab.params(count))
    serving.drain()
    serving.right()


def _model_without_other_tokens(lab, lengths, counts):
    """A model, prompts, and the model with NaN for every token that is neither in them nor in their answers."""
    model = lab.model()
    used = {0}
    while 0 in used:  # the likeliest padding
        prompts = prompts_of(lab, model, lengths)
        answers = [model.oracle.greedy(prompt, count)[0] for prompt, count in zip(prompts, counts, strict=True)]
        used = {token for ids in (*prompts, *answers) for token in ids}
    embedding = next(name for name in model.weights if "embed" in name)
    weights = np.array(model.weights[embedding])
    weights[[token for token in range(len(weights)) if token not in used]] = np.nan
    bare = copy.copy(model)
    bare.weights = {**model.weights, embedding: weights}
    return model, prompts, bare
