"""Phase 9: an end is noticed one step late, and nobody is told more for it."""

from minfer.core.sequence import FinishReason
from tests.phase9.streams import StreamServing, prompts_of

SAID = [9, 8, 7, 6, 5, 9, 8, 7, 6, 5]
"""What the scripted model answers: token i is the text " i"."""
ENDS = {
    "an end token": ({"ignore_eos": False}, [9, 8, 7], FinishReason.STOP),
    "a stop token": ({"stop_token_ids": [5]}, [9, 8, 7, 6, 5], FinishReason.STOP),
    "a stop string over two tokens": ({"stop": ["8 7"]}, [9, 8, 7], FinishReason.STOP),
    "max_tokens": ({"max_tokens": 4}, [9, 8, 7, 6], FinishReason.LENGTH),
    "min_tokens": ({"stop_token_ids": [8], "min_tokens": 3}, [9, 0, 7, 6, 5, 9, 8], FinishReason.STOP),
    "max_tokens = 1": ({"max_tokens": 1}, [9], FinishReason.LENGTH),
}


def scripted(lab, answer=SAID):
    """A model that answers any prompt of two tokens with `answer`; 7 ends a request that does not ignore it."""
    return lab.scripted(2, answer, eos_token_id=7)


def test_P9_11_nobody_gets_a_token_too_many(engine_cls, lab):
    code, hint = "P9-11", "of a request that has ended since its step was launched, the draw is thrown away"
    model = scripted(lab)
    serving = StreamServing(
        engine_cls, lab, model, code, "one request for each way to end", hint, tokenizer=lab.tokenizer(eos=[7])
    )
    for params, _, _ in ENDS.values():
        serving.submit([5, 6], lab.params(**{"max_tokens": 8, **params}))
    serving.drain()
    for sequence, (name, (_, want, reason)) in zip(serving.sequences, ENDS.items(), strict=True):
        completion = sequence.completion()
        serving.equal(completion.token_ids, want, f"looked at the one that ends by {name}")
        serving.equal(completion.finish_reason, reason, f"looked why it ended, by {name}")
        serving.equal(len(completion.timestamps.tokens), len(want), f"counted the times of its tokens, by {name}")
    text = serving.sequences[2].text
    serving.equal(text, " 9 ", "looked at the text before the stop string")


def test_P9_12_what_the_length_tells_is_not_computed(engine_cls, lab):
    hint = "max_tokens and the context are known beforehand: the last token of such a request is never fed"
    model = lab.model()
    for lengths, counts in (((5, 9, 3), (6, 2, 4)), ((4, 4), (5, 5)), ((7,), (1,))):
        did = f"prompts of {lengths} tokens, answers of {counts}"
        serving = StreamServing(engine_cls, lab, model, "P9-12", did, hint, share_prefixes=False)
        serving.serve(prompts_of(lab, model, lengths), [lab.params(count) for count in counts])
        want = sum(lengths) + sum(counts) - len(counts)
        serving.equal(serving.forwarded, want, "counted the tokens that were computed")
    did = "the context is full after 5 tokens"
    serving = StreamServing(engine_cls, lab, model, "P9-12", did, hint, context=12)
    serving.serve(prompts_of(lab, model, (7,)), lab.params(None))
    serving.equal(serving.forwarded, 11, "counted the tokens that were computed")


def test_P9_15_aborted_with_a_step_in_flight(engine_cls, lab):
    hint = "a request that is gone gets nothing, holds nothing, and no step that it was in counts as work to be done"
    model = lab.model("mistral")
    for after in (1, 2, 4):
        did = f"three requests, of which one is aborted after {after} steps"
        serving = StreamServing(engine_cls, lab, model, "P9-15", did, hint, num_blocks=16, chunk_size=4)
        gone, *_ = [serving.submit(prompt, lab.params(7)) for prompt in prompts_of(lab, model, (6, 3, 9))]
        for _ in range(after):
            serving.step()
        had = list(gone.output_ids)
        serving.equal(serving.engine.abort(gone.id), True, "looked what abort returned")
        serving.check()
        serving.drain()
        serving.equal(gone.output_ids, had, "looked at the tokens of the one that was aborted")
        serving.sequences.remove(gone)
        serving.right()
        _all_gone(serving)
    serving.did = "aborted all three after two steps"
    serving.sequences.clear()
    for prompt in prompts_of(lab, model, (6, 3, 9)):
        serving.submit(prompt, lab.params(7))
    for _ in range(2):
        serving.step()
    for sequence in serving.sequences:
        serving.engine.abort(sequence.id)
    serving.empty()
    _all_gone(serving)


def _all_gone(serving):
    """With no request left there is nothing to do."""
    __tracebackhide__ = True
    before = serving.forwarded
    serving.equal(serving.engine.step(), [], "called step() when all were gone")
    serving.equal(serving.forwarded, before, "counted the tokens computed when all were gone")


def test_P9_19_every_step_gives_tokens(engine_cls, lab):
    hint = "with no step in flight, launch one, launch the next, and only then wait: an empty list says: no work"
    model = lab.model()
    serving = StreamServing(engine_cls, lab, model, "P9-19", "two requests of 5 and 3 tokens", hint)
    for prompt, count in zip(prompts_of(lab, model, (4, 6)), (5, 3), strict=True):
        serving.submit(prompt, lab.params(count))
    advanced = []
    while serving.unfinished and serving.steps < 20:
        advanced.append(len(serving.step()))
    serving.equal(advanced, [2, 2, 2, 1, 1], "counted the requests that each step advanced")
    serving.empty()
    _all_gone(serving)
