"""Phase 3: each token is computed once, and nothing of the answer changes."""

import pytest

from minfer.core.errors import MinferError


@pytest.mark.points(needs="P3-07/P3-10")  # else there is no cache, and the answers of the phase before are right
def test_P3_01_positions_go_on_where_the_cache_ends(engine_cls, lab):
    model = lab.model("mha")
    (run,) = lab.run(lab.engine(engine_cls, model), lab.prompt(model, 6), lab.params(8))
    did = "generated 8 tokens after a prompt of 6"
    lab.follows(run, model, "P3-01", did, "if step 0 is right and step 1 is not: at which position is the new token?")


@pytest.mark.points(needs="P3-01")
def test_P3_02_several_tokens_after_a_cached_prefix(engine_cls, lab):
    hint = "query i of the chunk sits at position start + i: which keys may it see, and within which window?"

    def check(family):
        model = lab.model(family)
        for length, forced in ((5, 3), (2, lab.sizes.window + 4), (lab.sizes.window + 5, 6)):
            engine = lab.engine(engine_cls, model)
            (sequence,) = engine.sequences([lab.prompt(model, length)], lab.params(forced + 4))
            engine.admit([sequence])
            engine.execute([sequence])
            chunk = lab.prompt(model, forced)
            sequence.token_ids += chunk
            sequence.output_ids += chunk
            engine.execute([sequence])
            got = engine.record.rows(sequence, model.config.vocab_size)
            want = model.oracle.logits(sequence.token_ids)[[length - 1, -2]]
            did = f"{family}: computed {length} tokens, then {forced + 1} more at once"
            lab.equal(got, want, "P3-02", did, hint)
            engine.release(sequence)

    lab.each(("llama", "gpt2", "mistral", "qwen3", "dynamic"), check)


@pytest.mark.points(needs="P3-01")
def test_P3_06_a_second_call_starts_from_an_empty_cache(engine_cls, lab):
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    lab.run(engine, lab.prompt(model, 11), lab.params(5))
    for length in (11, 4, 17):
        (run,) = lab.run(engine, lab.prompt(model, length), lab.params(4))
        did = f"generated twice with one engine; looked at the second answer, to a prompt of {length}"
        lab.follows(run, model, "P3-06", did, "what of the first conversation is still in the cache?")


@pytest.mark.points(needs="P3-01")
def test_P3_12_a_second_stream_is_answered_rightly_or_refused(engine_cls, lab):
    code, hint = "P3-12", "one cache, two requests that are both half done: whose keys are in it?"
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    prompts = lab.prompt(model, 12), lab.prompt(model, 4)
    one, other = (engine.sequences([prompt], lab.params(6))[0] for prompt in prompts)
    steps = engine.run([one])
    next(steps)
    asked = [(one, prompts[0])]
    try:
        for _ in engine.run([other]):
            pass
        asked.append((other, prompts[1]))
    except MinferError:
        pass  # a clear refusal is an answer too
    for _ in steps:
        pass
    for sequence, prompt in asked:
        did = "ran a second request while the first was half done, then ended the first"
        lab.equal(sequence.output_ids, model.oracle.greedy(prompt, 6)[0], code, did, hint)


def test_P3_07_every_layer_has_its_own_keys_and_values(engine_cls, lab):
    code, hint = "P3-07", "one pair of tensors per layer: what does layer 1 find where layer 0 has just written?"
    model = lab.model()
    engine, sequence = halfway(engine_cls, lab, model, length=7, steps=3)
    caches = lab.caches(model, engine, sequence)
    held = sequence.token_ids[:-1]  # the last token has been drawn, not computed
    for i, layer in enumerate(model.oracle.layers(held)):
        for name, values in zip(("keys", "values"), layer, strict=True):
            share = caches.holds(values)
            did = f"computed {len(held)} tokens, then looked for the {name} of layer {i} in what the engine keeps"
            lab.check(share == 1, code, did, "all of them", f"{share:.0%} of them", hint)


def test_P3_08_the_cache_takes_the_bytes_of_the_formula(engine_cls, lab):
    code, hint = "P3-08", "2 · layers · tokens · kv_heads · head_dim · bytes: expand grouped heads when they are used"
    model = lab.model()
    config = model.config
    length, steps = model.context - 6, 6
    engine, sequence = halfway(engine_cls, lab, model, length, steps, until=steps - 1)
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 8
    held = len(sequence.token_ids) - 1
    got = lab.caches(model, engine, sequence).nbytes
    did = f"filled the context of {model.context} tokens in float64; added up the engine's key and value tensors"
    want = f"between {held * per_token:,} (tokens held) and {model.context * per_token * 5 // 4:,} bytes"
    fits = held * per_token <= got <= model.context * per_token * 5 // 4
    lab.check(fits, code, did, want, f"{got:,} bytes, {got / per_token / model.context:.2f} × the formula", hint)


@pytest.mark.points(needs="P3-01")
def test_P3_09_the_empty_tail_is_never_seen(engine_cls, lab):
    model = lab.model("qwen2-windows")
    engine = lab.engine(engine_cls, model)
    (sequence,) = engine.sequences([lab.prompt(model, 6)], lab.params(12))
    for _ in engine.run([sequence]):
        lab.caches(model, engine, sequence).poison()
    got = engine.record.rows(sequence, model.config.vocab_size)
    want = model.oracle.logits(sequence.token_ids)[5:-1]
    did = "filled what the cache has not yet been given with 10000 after each step"
    lab.equal(got, want, "P3-09", did, "how much of the buffer does a query see, and how much is filled?")


def test_P3_10_one_token_per_step_after_the_prompt(engine_cls, lab):
    code, hint = "P3-10", "prepare feeds what the cache does not hold: the prompt once, then the token just drawn"
    model = lab.model("mistral")
    engine = lab.engine(engine_cls, model)
    length = lab.sizes.window + 4
    lab.run(engine, lab.prompt(model, length), lab.params(6))
    did = f"counted the tokens computed in each step, for 6 tokens after a prompt of {length}"
    lab.equal(engine.record.forwarded, [length, 1, 1, 1, 1, 1], code, did, hint)


@pytest.mark.points(needs="P3-01")
def test_P3_11_windows_slide_over_the_cache(engine_cls, lab):
    hint = "a query sees `window` positions, itself included, and layers may differ"

    def check(family):
        model = lab.model(family)
        for length in (1, lab.sizes.window, lab.sizes.window + 5):
            steps = lab.sizes.window + 6
            (run,) = lab.run(lab.engine(engine_cls, model), lab.prompt(model, length), lab.params(steps))
            did = f"{family}, windows {model.config.windows}: {steps} tokens after a prompt of {length}"
            lab.follows(run, model, "P3-11", did, hint)

    lab.each(("mistral", "qwen2-windows", "qwen3"), check)


def halfway(engine_cls, lab, model, length, steps, until=None):
    """An engine that has taken all but one of a request's steps, or `until` of them, and the request."""
    engine = lab.engine(engine_cls, model)
    (sequence,) = engine.sequences([lab.prompt(model, length)], lab.params(steps))
    running = engine.run([sequence])
    for _ in range(until or steps - 1):
        next(running)
    engine.held_open = running  # or it would be closed, and the cache released
    return engine, sequence
