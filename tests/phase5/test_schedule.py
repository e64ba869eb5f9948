"""Phase 5: the order of work: chunks, newcomers, those who wait and those who leave."""

import json

from minfer.core.errors import RequestError
from minfer.core.sequence import FinishReason, Status
from tests.phase5.serving import Serving, alone


def prompts_of(lab, model, lengths):
    return [lab.prompt(model, length) for length in lengths]


def test_P5_09_prompts_in_one_forward_keep_their_last_rows(engine_cls, lab):
    hint = "the last row of each prompt: where does it end in the flat batch, and whose token is drawn from it?"
    for family in ("llama", "mistral"):
        model = lab.model(family)
        for lengths in ((5, 2, 9), (2, 9, 5), (9, 5, 2), (1, 3, 1)):
            did = f"{family}: prompts of {lengths} tokens submitted at once"
            serving = Serving(engine_cls, lab, model, "P5-09", did, hint, block_size=4, num_blocks=30)
            serving.serve(prompts_of(lab, model, lengths), lab.params(2))


def test_P5_10_nothing_is_drawn_before_the_prompt_has_ended(engine_cls, lab):
    code, hint = "P5-10", "a chunk that is not the prompt's last has no row of logits that anybody needs"
    model = lab.model("mistral")
    lengths = (13, 1, 8, 15)
    prompts = prompts_of(lab, model, lengths)
    params = [lab.params(6), lab.params(4), lab.params(5, temperature=1.0, seed=lab.seed), lab.params(3)]
    want = [alone(engine_cls, lab, model, *each).token_ids for each in zip(prompts, params, strict=True)]
    for chunk in (1, 2, 7, None):
        for size in (1, 3, 16):
            did = f"prompts of {lengths} tokens in chunks of {chunk or 'any size'}, blocks of {size}"
            serving = Serving(
                engine_cls, lab, model, code, did, hint, block_size=size, num_blocks=120 // size, chunk_size=chunk
            )
            serving.serve(prompts, params)
            serving.equal([one.output_ids for one in serving.sequences], want, "compared the tokens with those alone")
            drawn = sum(len(rows) for rows in serving.engine.record.logits.values())
            serving.equal(drawn, 6 + 4 + 5 + 3, "counted the rows of logits that tokens were drawn from")


def test_P5_15_aborted_at_any_step(engine_cls, lab):
    hint = "whether it waits, has half its prompt computed or draws tokens: its blocks and its place are given back"
    model = lab.model()
    prompts = prompts_of(lab, model, (6, 17, 9, 3))
    for victim in range(4):
        for when in range(9):
            did = f"aborted request {victim} of four before step {when}, chunks of 5"
            serving = Serving(
                engine_cls, lab, model, "P5-15", did, hint, block_size=4, num_blocks=11, chunk_size=5, max_batch=3
            )
            requests = [serving.submit(prompt, lab.params(5)) for prompt in prompts]
            for _ in range(when):
                serving.step()
            gone = requests[victim]
            tokens, open_before = list(gone.output_ids), not gone.finished
            serving.equal(serving.engine.abort(gone.id), open_before, "looked at what abort returned")
            serving.check()
            serving.drain()
            serving.equal(gone.output_ids, tokens, "looked for tokens that came after the abort")
            if open_before:
                serving.equal(gone.finish_reason, FinishReason.ABORT, "looked at why it ended")
                serving.sequences.remove(gone)
            serving.right()


def test_P5_16_a_step_keeps_within_its_limits(engine_cls, lab):
    code, hint = "P5-16", "decodes count against the token budget too, and a prompt may take several steps"
    model = lab.model("qwen2")
    prompts = prompts_of(lab, model, (13, 2, 9, 21, 1, 6))
    for budget, chunk, batch in ((8, 5, 3), (4, None, 4), (64, 3, 2), (5, 5, 5)):
        did = f"token_budget={budget}, chunk_size={chunk}, max_batch={batch}"
        serving = Serving(
            engine_cls,
            lab,
            model,
            code,
            did,
            hint,
            block_size=4,
            num_blocks=40,
            token_budget=budget,
            chunk_size=chunk,
            max_batch=batch,
        )
        for prompt in prompts:
            serving.submit(prompt, lab.params(5))
        while serving.unfinished:
            before = len(serving.engine.record.forwarded)
            serving.step()
            step = serving.state["step"]
            counts = [entry["tokens"] for entry in step]
            serving.equal(sum(serving.engine.record.forwarded[before:]), sum(counts), f"counted the tokens of {step}")
            serving.equal(sum(counts) <= budget, True, f"looked at the sum of {counts}")
            serving.equal(max(counts, default=0) <= (chunk or budget), True, f"looked at the largest of {counts}")
            serving.equal(len(serving.state["running"]) <= batch, True, "looked at how many run at once")
        serving.right()


def test_P5_17_a_newcomer_does_not_wait_for_the_others_to_end(engine_cls, lab):
    hint = "who comes while others run joins them at the next step, and leaves when it is done"
    model = lab.model("gpt2")
    did = "submitted a short request while a long one runs"
    serving = Serving(engine_cls, lab, model, "P5-17", did, hint, block_size=4, num_blocks=30)
    long = serving.submit(lab.prompt(model, 5), lab.params(25))
    serving.until(lambda: len(long.output_ids) == 3)
    short = serving.submit(lab.prompt(model, 7), lab.params(4))
    serving.until(lambda: short.finished)
    serving.equal(long.finished, False, "looked at the long one when the short one was done")
    serving.drain()
    serving.right()


def test_P5_18_first_come_first_served(engine_cls, lab):
    code, hint = "P5-18", "whoever is at the head of the queue is next, even if a later one would fit better"
    model = lab.model()
    serving = Serving(
        engine_cls, lab, model, code, "five requests, two at once", hint, block_size=4, num_blocks=30, max_batch=2
    )
    serving.serve(prompts_of(lab, model, (4, 4, 4, 4, 4)), lab.params(3))
    began = [sequence.timestamps.tokens[0] for sequence in serving.sequences]
    serving.equal(began, sorted(began), "looked at when each got its first token")
    did = "a request for 7 of 8 blocks, and small ones that never cease to come"
    serving = Serving(engine_cls, lab, model, code, did, hint, block_size=4, num_blocks=8)
    for _ in range(3):
        serving.submit(lab.prompt(model, 5), lab.params(6))
    serving.step()
    large = serving.submit(lab.prompt(model, 22), lab.params(5))
    for _ in range(60):
        serving.submit(lab.prompt(model, 5), lab.params(6))
        serving.step()
        if large.finished:
            break
    serving.equal(large.finished, True, f"looked at the large one after {serving.steps} steps")
    serving.drain()
    serving.right()


def test_P5_22_requests_come_and_go_by_submit_step_and_abort(engine_cls, lab):
    code, hint = (
        "P5-22",
        "submit returns at once, step does one step, abort says whether there was something to abort",
    )
    model = lab.model()
    serving = Serving(engine_cls, lab, model, code, "an engine of 8 blocks of 4", hint, block_size=4, num_blocks=8)
    engine = serving.engine
    serving.equal(engine.step(), [], "stepped with nothing to do")
    serving.equal(engine.abort(-1), False, "aborted a request that there never was")
    first = serving.submit(lab.prompt(model, 5), lab.params(3))
    serving.equal(engine.record.forwarded, [], "counted what submit computed")
    serving.equal(first.status, Status.WAITING, "looked at the status of a submitted request")
    second = serving.submit(lab.prompt(model, 3), lab.params(5))
    serving.until(lambda: first.output_ids)
    json.dumps(serving.state)
    got = serving.step()
    serving.equal(sorted(one.id for one in got), sorted([first.id, second.id]), "looked at what a step returned")
    serving.drain()
    nothing = serving.submit(lab.prompt(model, engine.context), lab.params(0))
    serving.equal([nothing.finished, nothing.finish_reason], [True, FinishReason.LENGTH], "submitted for 0 tokens")
    serving.drain()
    serving.equal(nothing.output_ids, [], "looked at the answer of 0 tokens")
    serving.right()
    too_large = lab.prompt(model, 30)
    for how in (engine.submit, engine.generate, engine.stream):
        did = f"{how.__name__}: 30 tokens and 5 new ones, of which 34 need room, in 8 blocks of 4"
        message = lab.raises(RequestError, lambda h=how: h(too_large, lab.params(5)), code, did, hint)
        lab.check("9" in message and "8" in message, code, did, "an error with both numbers of blocks", message, hint)
    lab.raises(RequestError, lambda: engine.submit([5], lab.params(n=2)), code, "submitted n=2 samples", hint)
    serving.serve([lab.prompt(model, 30)], lab.params(3))


def test_P5_23_alone_or_together_in_any_order_of_arrival(engine_cls, lab):
    code, hint = "P5-23", "neither the neighbours, nor the moment of arrival, nor the pool may show in an answer"

    def check(family):
        model = lab.model(family)
        full = model.context
        lengths, counts = (lab.sizes.window + 3, 1, full - 4, 9, 6), (7, 9, 4, 3, 5)
        prompts = prompts_of(lab, model, lengths)
        params = [lab.params(count) for count in counts]
        params[3] = lab.params(counts[3], temperature=1.5, seed=lab.seed)
        drawn = alone(engine_cls, lab, model, prompts[3], params[3]).token_ids
        for order, gap, size, pool in (((0, 1, 2, 3, 4), 0, 16, 12), ((4, 2, 3, 0, 1), 2, 4, -(-full // 4))):
            did = f"{family}: prompts of {lengths} in the order {order}, {gap} steps apart, {pool} blocks of {size}"
            serving = Serving(engine_cls, lab, model, code, did, hint, block_size=size, num_blocks=pool, chunk_size=11)
            for i in order:
                serving.submit(prompts[i], params[i])
                for _ in range(gap):
                    serving.step()
            serving.drain()
            serving.right()
            serving.equal(serving.sequences[order.index(3)].output_ids, drawn, "compared the sampled one with it alone")

    lab.each(lab.families, check)


def test_P5_24_several_streams_at_once(engine_cls, lab):
    code, hint = (
        "P5-24",
        "a stream runs everybody's steps, gives out its own text, and takes nothing of the others'",
    )
    model = lab.model()
    engine = lab.engine(engine_cls, model, lab.tokenizer(), block_size=4, num_blocks=24)
    prompts = prompts_of(lab, model, (4, 9, 6))
    params = [lab.params(count) for count in (6, 3, 9)]
    want = [completion.text for completion in engine.generate(prompts, params)]
    streams = [engine.stream(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    got = [""] * 3
    for turn in range(40):
        got[turn % 3] += next(streams[turn % 3], "")
    lab.equal(got, want, code, "took pieces of three streams in turn", hint)
    first, second = engine.stream(prompts[0], params[0]), engine.stream(prompts[2], params[2])
    head = next(first) + next(first)
    got = "".join(second)
    lab.equal(got, want[2], code, "ran one stream to its end while another is open", hint)
    lab.equal(head + "".join(first), want[0], code, "then took the rest of the other", hint)
