"""Phase 4: several requests in one forward, and none of them notices the others."""

import pytest

from minfer.core.sequence import FinishReason

LENGTHS = (2, 9, 5)


def prompts_of(lab, model, lengths=LENGTHS):
    return [lab.prompt(model, length) for length in lengths]


def answers(engine_cls, lab, model, prompts, count, code, did, hint, **options):
    """Fail unless each prompt of one call gets `count` right tokens; returns the engine."""
    __tracebackhide__ = True
    engine = lab.engine(engine_cls, model, **options)
    for run in lab.run(engine, prompts, lab.params(count)):
        of_this = f"{did}, at the one of {len(run.prompt_ids)}"
        lab.equal(len(run.token_ids), count, code, of_this, hint)
        lab.follows(run, model, code, of_this, hint)
    return engine


@pytest.mark.points(needs="P4-06/P4-11")  # else there is no batch, and the answers of the phase before are right
def test_P4_01_each_row_is_read_at_its_own_last_token(engine_cls, lab):
    hint = "the rows of a padded batch end in different columns: at which of them is the logits row of each request?"

    def check(family):
        model = lab.model(family)
        did = f"{family}: one token for each of three prompts of {LENGTHS}"
        answers(engine_cls, lab, model, prompts_of(lab, model), 1, "P4-01", did, hint)

    lab.each(("llama", "gpt2"), check)


@pytest.mark.points(needs="P4-01")
def test_P4_02_each_row_has_its_own_positions(engine_cls, lab):
    hint = "a token's position counts the tokens of its own request; the column that it stands in counts padding too"

    def check(family):
        model = lab.model(family)
        did = f"{family}: 7 tokens for each of three prompts of {LENGTHS}"
        answers(engine_cls, lab, model, prompts_of(lab, model), 7, "P4-02", did, hint)

    lab.each(("mha", "gpt2"), check)


@pytest.mark.points(needs="P4-01")
def test_P4_03_padding_is_never_seen(engine_cls, lab):
    code, hint = "P4-03", "mask the padding in prefill, and in every decode step too: it is still in the cache"
    model = lab.model()
    prompts = prompts_of(lab, model, (2, 11, 5))
    params = lab.params(8, logit_bias=dict.fromkeys(range(4), -1e9))  # no answer holds a control token
    want = lab.run(lab.engine(engine_cls, model), prompts, params)
    other = model.module()
    other.embed_tokens.weight.data[:4] += 3.0
    got = lab.run(lab.engine(engine_cls, other), prompts, params)
    for run, right in zip(got, want, strict=True):
        did = f"changed the embeddings of tokens 0 to 3, one of which pads; at the prompt of {len(run.prompt_ids)}"
        lab.equal(run.logits, right.logits, code, did, hint)
        lab.computes(right, model, code, "8 tokens for each of three prompts", hint)


@pytest.mark.points(needs="P4-01")
def test_P4_05_a_finished_row_says_nothing_more(engine_cls, lab):
    code, hint = "P4-05", "the others go on: what happens to the row of a request that has met its end token?"
    script = [9] * 12 + [lab.eos] + [7] * lab.sizes.context
    engine = lab.engine(engine_cls, lab.scripted(1, script[: lab.sizes.context]), lab.tokenizer({9: b"a", 7: b"b"}))
    runs = lab.run(engine, [[5] * length for length in LENGTHS], lab.params(20, ignore_eos=False))
    for run, length in zip(runs, LENGTHS, strict=True):
        did = f"three prompts of {LENGTHS}, with an end token at position 13 of each, at the one of {length}"
        said = 13 - length
        lab.equal(run.token_ids, [9] * said + [lab.eos], code, did, hint)
        lab.equal(run.completion.text, "a" * said, code, did, hint)
        lab.equal(run.completion.finish_reason, FinishReason.STOP, code, did, hint)


def test_P4_06_as_many_steps_as_the_longest_answer(engine_cls, lab):
    code, hint = "P4-06", "not until any is finished, not until all have reached the limit: until none is left"
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    runs = lab.run(engine, prompts_of(lab, model), [lab.params(count) for count in (3, 8, 1)])
    did = "asked for 3, 8 and 1 tokens"
    lab.equal([len(run.token_ids) for run in runs], [3, 8, 1], code, f"{did}; counted the tokens", hint)
    lab.equal(len(engine.record.forwarded), 8, code, f"{did}; counted the steps", hint)
    scripted = lab.engine(engine_cls, lab.scripted(1, [9, 9, 9, 9, lab.eos]))
    lab.run(scripted, [[5], [5, 5, 5]], lab.params(30, ignore_eos=False))
    did = "end tokens after 5 and after 3 tokens, with room for 30; counted the steps"
    lab.equal(len(scripted.record.forwarded), 5, code, did, hint)


@pytest.mark.points(needs="P4-01")
def test_P4_07_no_token_of_a_prompt_is_taken_for_padding(engine_cls, lab):
    hint = "what is padding is known from the lengths: the id that pads may stand in a prompt as well"
    model = lab.model()
    prompts = [[7, 0, 0, 8, 1, 2, 3, 0, 9], [0, 5], [2, 2, 2], [6, 3, 1, 0]]
    did = f"prompts that hold the control tokens 0 to 3 as ordinary tokens: {prompts}"
    answers(engine_cls, lab, model, prompts, 6, "P4-07", did, hint)


def test_P4_08_answers_stand_in_the_order_asked(engine_cls, lab):
    code, hint = "P4-08", "whoever sorts by length must put the answers back"
    model = lab.model("mistral")
    prompts = prompts_of(lab, model, (7, 2, 12, 3, 9))
    orders = [(0, 1, 2, 3, 4), (4, 2, 0, 1, 3), (3, 1, 4, 0, 2)]
    for batch in (2, 5):
        engine = lab.engine(engine_cls, model, max_batch=batch)
        for order in orders:
            asked = [prompts[i] for i in order]
            runs = lab.run(engine, asked, lab.params(3))
            did = f"five prompts of {[len(prompt) for prompt in asked]} tokens, at most {batch} in a batch"
            lab.equal([run.prompt_ids for run in runs], asked, code, did, hint)
            lab.equal([len(run.token_ids) for run in runs], [3] * 5, code, did, hint)
            for run in runs:
                lab.follows(run, model, code, did, hint)


@pytest.mark.points(needs="P4-01")
def test_P4_10_each_row_has_its_own_parameters(engine_cls, lab):
    code, hint = "P4-10", "one temperature, seed, filter and bias per row: the first request's are not everybody's"
    model = lab.model("qwen2")
    prompts = prompts_of(lab, model, (4, 4, 6, 2, 5))
    hot = {"temperature": 1.3, "seed": lab.seed}
    params = [
        lab.params(9, **hot),
        lab.params(7),
        lab.params(6, **hot, top_k=3),
        lab.params(8, temperature=0.7, seed=lab.seed + 1, top_p=0.8),
        lab.params(5, logit_bias={9: 1e6}),
    ]
    runs = lab.run(lab.engine(engine_cls, model), prompts, params)
    lab.follows(runs[1], model, code, "a greedy request beside sampled ones", hint)
    lab.equal(runs[4].token_ids, [9] * 5, code, "a request with a bias that forces token 9", hint)
    for i, run in enumerate(runs):
        (alone,) = lab.run(lab.engine(engine_cls, model), [prompts[i]], params[i])
        lab.equal(run.token_ids, alone.token_ids, code, f"request {i} of five, beside it alone", hint)


def test_P4_11_finished_rows_leave_the_computation(engine_cls, lab):
    code, hint = "P4-11", "a row that is computed and thrown away costs as much as one that is needed"
    model = lab.model("qwen3")
    engine = lab.engine(engine_cls, model)
    runs = lab.run(engine, prompts_of(lab, model, (6, 2, 9, 4)), [lab.params(count) for count in (2, 7, 4, 4)])
    did = "asked for 2, 7, 4 and 4 tokens; counted the tokens that each step after the first computed"
    lab.equal(engine.record.forwarded[1:], [4, 3, 3, 1, 1, 1], code, did, hint)
    lab.equal([len(run.token_ids) for run in runs], [2, 7, 4, 4], code, did, hint)
    for run in runs:
        lab.follows(run, model, code, "rows that go on when others have left", hint)


@pytest.mark.points(needs="P4-01")
def test_P4_12_ragged_batches_of_every_family(engine_cls, lab):
    def check(family):
        model = lab.model(family)
        full, window = model.context, lab.sizes.window
        lengths = (window, 1, full - 4, window + 5)
        params = [lab.params(window + 4), lab.params(9), lab.params(None), lab.params(6)]
        runs = lab.run(lab.engine(engine_cls, model), prompts_of(lab, model, lengths), params)
        for run in runs:
            did = f"{family}: prompts of {lengths} together, at the one of {len(run.prompt_ids)}"
            lab.follows(run, model, "P4-12", did, "which of masks, windows and positions are not each row's own?")
        counts = [len(run.token_ids) for run in runs]
        did = f"{family}: counted the tokens, the third answer's up to the context of {full}"
        lab.equal(counts, [window + 4, 9, 4, 6], "P4-12", did)

    lab.each(lab.families, check)


@pytest.mark.points(needs="P4-01")
def test_P4_13_alone_or_together_in_any_order(engine_cls, lab):
    code, hint = "P4-13", "an answer depends on its own request alone: neither on its neighbours nor on its row"
    model = lab.model("llama3")
    lengths = (3, 14, 1, 8)
    prompts = prompts_of(lab, model, lengths)
    params = [lab.params(6, temperature=1.0, seed=lab.seed + i) for i in range(len(prompts))]
    alone = [lab.run(lab.engine(engine_cls, model), [one], own)[0] for one, own in zip(prompts, params, strict=True)]
    engine = lab.engine(engine_cls, model)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3)):
        runs = lab.run(engine, [prompts[i] for i in order], [params[i] for i in order])
        for i, run in zip(order, runs, strict=True):
            together = [lengths[j] for j in order]
            did = f"sampled prompts of {together} tokens together; compared the one of {lengths[i]} with it alone"
            lab.equal(run.logits, alone[i].logits, code, did, hint)
            lab.equal(run.token_ids, alone[i].token_ids, code, did, hint)


def test_P4_14_more_requests_than_a_batch_takes(engine_cls, lab):
    code, hint = "P4-14", "max_batch rows at most, and the next group starts with an empty cache"
    model = lab.model("qwen2-windows")
    lengths = (9, 17, 8, 12, 10, 21, 8)  # more than there are requests, so a step of few tokens is a decode
    for batch in (1, 3, 7):
        did = f"7 prompts of {lengths} tokens, at most {batch} in a batch"
        prompts = prompts_of(lab, model, lengths)
        engine = answers(engine_cls, lab, model, prompts, 5, code, did, hint, max_batch=batch)
        rows = max(count for count in engine.record.forwarded if count <= len(lengths))
        lab.equal(rows, batch, code, f"{did}; looked for the most tokens of a decode step", hint)


def test_P4_15_how_much_of_the_cache_holds_something(engine_cls, lab):
    code, hint = "P4-15", "held are the cached tokens of requests that run; padding and reserves hold nothing"
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    sequences = engine.sequences(prompts_of(lab, model, (9, 2, 5)), [lab.params(count) for count in (4, 6, 1)])
    running = engine.run(sequences)
    wanted = [9 + 2, 10 + 3, 11 + 4, 5, 6]  # after each step; whoever is finished holds nothing
    for step, want in enumerate(wanted):
        next(running)
        usage = engine.kv_usage()
        did = f"prompts of 9, 2 and 5 that get 4, 6 and 1 tokens; asked for kv_usage() after step {step}"
        lab.equal(usage.held, want, code, did, hint)
        lab.check(usage.allocated >= usage.held, code, did, f"at least {usage.held} slots", f"{usage.allocated}", hint)
        lab.equal(usage.unused, 1 - want / usage.allocated, code, did, hint)
    running.close()
