"""Phase 5: blocks of the pool: whose they are, where they end, what is read of them, what becomes of them."""

from contextlib import suppress

import pytest
import torch

from tests.phase5.serving import Serving, alone

POISON = 1e4


def prompts_of(lab, model, lengths):
    return [lab.prompt(model, length) for length in lengths]


def test_P5_01_a_block_is_freed_once(engine_cls, lab):
    hint = "a second release must change nothing, and a free block must not be in the free list twice"
    model = lab.model()
    did = "12 blocks of 4; released and aborted requests twice"
    serving = Serving(engine_cls, lab, model, "P5-01", did, hint, block_size=4, num_blocks=12, share_prefixes=False)
    engine = serving.engine
    first, second, third = [
        serving.submit(lab.prompt(model, length), lab.params(count)) for length, count in ((6, 2), (9, 12), (5, 12))
    ]
    serving.until(lambda: first.finished)
    engine.release(first)
    engine.release(first)
    serving.equal(engine.abort(first.id), False, "aborted a finished request")
    serving.check()
    serving.equal([engine.abort(second.id), engine.abort(second.id)], [True, False], "aborted a request twice")
    engine.release(second)
    serving.check()
    serving.until(lambda: third.finished)
    serving.empty()
    serving.did += ", then once more while others hold their blocks"
    serving.sequences.clear()
    for prompt in prompts_of(lab, model, (9, 4, 12, 7)):
        serving.submit(prompt, lab.params(6))
    while serving.unfinished:
        serving.step()
        engine.release(first)
        engine.abort(second.id)
        serving.check()
    serving.empty()
    serving.right()


def test_P5_02_no_block_is_lost(engine_cls, lab):
    code, hint = (
        "P5-02",
        "every way out frees the blocks: length, end token, stop string, abort, error, a closed stream",
    )
    script = [9] * 12 + [lab.eos] + [9] * lab.sizes.context
    model = lab.scripted(1, script[: lab.sizes.context])
    did = "50 requests on 8 blocks of 4"
    serving = Serving(engine_cls, lab, model, code, did, hint, lab.tokenizer({9: b"a"}), block_size=4, num_blocks=8)
    endings = [
        {"max_tokens": 3},
        {"max_tokens": 16, "ignore_eos": False},  # at position 13 an end token
        {"max_tokens": 9, "stop": ["aa"]},
        {"max_tokens": 20},  # aborted
        {"max_tokens": 1},
    ]
    for number in range(50):
        sequence = serving.submit([5 + number] * (1 + number % 11), lab.params(**endings[number % 5]))
        if number % 5 == 3:
            for _ in range(number % 4):
                serving.step()
            serving.engine.abort(sequence.id)
    serving.drain()
    reasons = {sequence.finish_reason.value for sequence in serving.sequences}
    serving.equal(reasons, {"length", "stop", "abort"}, "looked at how they ended")
    stream = serving.engine.stream([5, 6, 7], lab.params(20))
    next(stream)
    stream.close()
    serving.empty()
    model, did = lab.scripted(3, [9] * 9, fail_at=6), "a step that raises"
    failing = Serving(engine_cls, lab, model, code, did, hint, block_size=4, num_blocks=8)
    with suppress(ArithmeticError):
        failing.engine.generate([5, 6, 7], lab.params(9))
    failing.empty()


def test_P5_03_what_a_block_held_before_is_never_seen(engine_cls, lab):
    code, hint = "P5-03", "the last block is rarely full, and was another's before: who cuts it off at the length?"
    model = lab.model("qwen2-windows")
    did = "filled what the pool has not yet been given with 10000 after each step"
    serving = Serving(engine_cls, lab, model, code, did, hint, block_size=4, num_blocks=18, share_prefixes=False)
    for prompt in prompts_of(lab, model, (6, 13, 3)):
        serving.submit(prompt, lab.params(9))
    while serving.unfinished:
        serving.step()
        lab.caches(model, serving.engine, serving.sequences).poison()
    serving.right()
    with torch.inference_mode():
        for tensor in lab.caches(model, serving.engine).tensors:
            tensor.fill_(POISON)
    serving.did = "filled the whole pool with 10000 between two requests"
    serving.sequences.clear()
    serving.serve(prompts_of(lab, model, (5, 8, 1, 11)), lab.params(7))


def test_P5_04_lengths_around_the_end_of_a_block(engine_cls, lab):
    hint = "when does the next token need a new block, and in which slot of it does it go?"
    model = lab.model("mistral")
    for size in (1, 3, 4, 16):
        lengths = [length for length in (size - 1, size, size + 1, 2 * size - 1, 2 * size) if length]
        prompts, count = prompts_of(lab, model, lengths), min(size + 2, 5)
        did = f"blocks of {size}, prompts of {lengths} tokens, {count} new tokens each"
        pools = {"": 400 // size, ", the longest in a pool that it just fits": -(-(2 * size + count - 1) // size)}
        for where, pool in pools.items():
            serving = Serving(engine_cls, lab, model, "P5-04", did + where, hint, block_size=size, num_blocks=pool)
            serving.serve(prompts[-1:] if where else prompts, lab.params(count))


def test_P5_05_nobody_writes_into_anothers_block(engine_cls, lab):
    code, hint = "P5-05", "rows that only fill up a batch write too: give them a block that nobody owns"
    model = lab.model()
    did = "requests of different lengths, in and out of the batch"
    serving = Serving(engine_cls, lab, model, code, did, hint, block_size=4, num_blocks=30, share_prefixes=False)
    for length, count in ((7, 14), (3, 4), (10, 9), (1, 5), (6, 11)):
        serving.submit(lab.prompt(model, length), lab.params(count))
        serving.step()
        _holds_what_it_computed(serving)
    while serving.unfinished:
        serving.step()
        _holds_what_it_computed(serving)
    serving.right()


def _holds_what_it_computed(serving):
    """Every running request's keys and values are in the pool, as the oracle has them."""
    __tracebackhide__ = True
    model, lab = serving.model, serving.lab
    caches = lab.caches(model, serving.engine, serving.sequences)
    for sequence in serving.unfinished:
        layers = model.oracle.layers(sequence.token_ids[: sequence.num_cached]) if sequence.num_cached else []
        for i, layer in enumerate(layers):
            for name, values in zip(("keys", "values"), layer, strict=True):
                share = caches.holds(values)
                tokens = f"{sequence.num_cached} cached tokens in layer {i}"
                did = f"{serving.did}; after step {serving.steps} looked for the {name} of {tokens}"
                lab.check(share == 1, serving.code, did, "all of them", f"{share:.0%}", serving.hint)


def test_P5_06_tables_belong_to_requests_not_to_rows(engine_cls, lab):
    hint = "when the first leaves, the others move up in the batch: do their tables move with them?"
    for family in ("llama", "gpt2"):
        model = lab.model(family)
        for counts in ((2, 9, 12), (9, 2, 12), (3, 3, 9)):
            did = f"{family}: three requests that end after {counts} tokens"
            serving = Serving(engine_cls, lab, model, "P5-06", did, hint, block_size=3, num_blocks=40)
            serving.serve(prompts_of(lab, model, (5, 8, 4)), [lab.params(count) for count in counts])


def test_P5_07_a_pool_that_is_too_small_for_all(engine_cls, lab):
    hint = "no block is free for the next token: one of them must give its blocks back and go on later"
    model = lab.model("llama3")
    for size, chunk in ((1, None), (4, None), (4, 3)):
        longest = 9 + 14 - 1
        pool = -(-longest * 3 // (2 * size))
        did = f"a pool for 1.5 of the longest of four requests, blocks of {size}, chunks of {chunk or 'any size'}"
        options = {"block_size": size, "num_blocks": pool, "chunk_size": chunk, "share_prefixes": False}
        serving = Serving(engine_cls, lab, model, "P5-07", did, hint, **options)
        serving.serve(prompts_of(lab, model, (9, 7, 9, 4)), [lab.params(count) for count in (14, 12, 14, 15)])
        held_back = serving.state["preemptions"] > 0
        serving.equal(held_back, True, "looked whether any request had to give way (debug_state()['preemptions'])")


@pytest.mark.points(needs="P5-07")
def test_P5_08_a_request_that_gave_way_goes_on_where_it_was(engine_cls, lab):
    code, hint = "P5-08", "it keeps its tokens and its seed; what it had in the cache it has no more"
    model = lab.model("qwen3")
    prompts = prompts_of(lab, model, (9, 7))
    cases = {
        "greedy": [lab.params(8), lab.params(8)],
        "sampled": [lab.params(8, temperature=1.2, seed=lab.seed + i) for i in range(2)],
    }
    for how, params in cases.items():
        want = [alone(engine_cls, lab, model, *each).token_ids for each in zip(prompts, params, strict=True)]
        gave_way = set()
        for pool in range(16, 30, 1 if how == "sampled" else 3):  # blocks of one token: another step in each pool
            did = f"two requests of 16 and 14 tokens in all in a pool for {pool}, {how}"
            options = {"block_size": 1, "num_blocks": pool, "share_prefixes": False}
            serving = Serving(engine_cls, lab, model, code, did, hint, **options)
            for prompt, own in zip(prompts, params, strict=True):
                serving.submit(prompt, own)
            serving.until(lambda s=serving: s.state["preemptions"] or not s.unfinished)
            gave_way.add(serving.steps)
            serving.drain()
            serving.right()
            serving.equal([one.output_ids for one in serving.sequences], want, "compared the tokens with those alone")
        did = f"two {how} requests in ever larger pools; noted the step in which one gave way"
        lab.check(len(gave_way) > 2, code, did, "at least 3 different steps", f"{sorted(gave_way)}", hint)
