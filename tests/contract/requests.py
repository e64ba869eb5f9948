"""What a user may rely on about a request: streams, errors, log-probabilities, times."""

import numpy as np

from minfer.core.errors import MinferError, RequestError
from minfer.core.sequence import FinishReason

CAFE = {10: b"caf", 11: b"\xc3", 12: b"\xa9", 13: b" au lait", 14: b"\xf0\x9f", 15: b"\x99\x82"}


class Requests:
    """Graded in every phase, as the class TestContract of its folder."""

    def test_P0_24_a_stream_is_the_text_as_it_comes(self, engine_cls, lab):
        code, hint = "P0-24", "give out each step's new text, and at the end what was held back"
        answer = [10, 11, 12, 13, 14, 15, 11]
        engine = lab.engine(engine_cls, lab.scripted(2, answer), lab.tokenizer(CAFE))
        params = lab.params(len(answer))
        text = engine.generate([[5, 6]], params)[0].text
        lab.equal(text, "café au lait🙂\ufffd", code, "generated characters that are split over tokens", hint)
        engine.record.forwarded.clear()
        stream = engine.stream([5, 6], params)
        pieces = [next(stream)]
        calls = len(engine.record.forwarded)
        lab.check(calls <= 2, code, "took the first piece of a stream", "1 or 2 steps", f"{calls} steps", hint)
        pieces += list(stream)
        lab.equal("".join(pieces), text, code, "joined the pieces of a stream", hint)
        halves = [piece for piece in pieces[:-1] if "\ufffd" in piece]
        lab.equal(halves, [], code, "looked for half characters in a stream", hint)

    def test_P0_28_a_bad_request_runs_nothing(self, engine_cls, lab):
        code, hint = "P0-28", "check every prompt and parameter before the first of them runs"
        model = lab.model()
        engine = lab.engine(engine_cls, model)
        good = lab.prompt(model, 3)
        bad = {
            "an empty prompt": ([good, []], None),
            "a token id outside the vocabulary": ([good, [model.config.vocab_size]], None),
            "a negative token id": ([good, [-1]], None),
            "a prompt longer than the context": ([good, good * model.context], None),
            "two parameters for three prompts": ([good] * 3, [lab.params(1)] * 2),
            "text without a tokenizer": ([good, "text"], None),
        }
        for name, (prompts, params) in bad.items():
            lab.raises(RequestError, lambda a=prompts, b=params: engine.generate(a, b), code, f"sent {name}", hint)
        lab.raises(RequestError, lambda: engine.stream([]), code, "streamed an empty prompt", hint)
        lab.equal(engine.record.forwarded, [], code, "counted the tokens that were computed for all this", hint)

    def test_P0_29_logprobs_are_those_of_the_model(self, engine_cls, lab):
        code, hint = "P0-29", "raw logits, before temperature; prompt token i is judged by the row of token i - 1"
        model = lab.model("llama3")
        params = lab.params(5, temperature=1.7, top_k=9, seed=3, logprobs=4, prompt_logprobs=2)
        (run,) = lab.run(lab.engine(engine_cls, model), lab.prompt(model, 6), params)
        known = [*run.prompt_ids, *run.token_ids]
        want = model.oracle.logits(known)
        want = want - np.log(np.exp(want).sum(-1, keepdims=True))
        judged = [*(run.completion.prompt_logprobs or [])[1:], *(run.completion.logprobs or [])]
        did = "asked for log-probabilities of a prompt of 6 tokens and of 5 sampled ones"
        lab.equal(len(judged), len(known) - 1, code, did, hint)
        lab.equal([one.token_id for one in judged], known[1:], code, did, hint)
        rows = np.arange(len(known) - 1)
        got = np.array([[one.logprob] for one in judged])
        lab.equal(
            got, want[rows, known[1:]][:, None], code, f"{did}; compared each with the model's", hint, what="token"
        )
        best = [np.argsort(-row)[:4].tolist() for row in want[5:-1]]
        tops = [[token_id for token_id, _ in one.top] for one in judged[5:]]
        lab.equal(tops, best, code, "looked at the four likeliest of each new token", hint)

    def test_P0_30_an_error_in_a_step_leaves_the_engine_usable(self, engine_cls, lab):
        code, hint = "P0-30", "run must release what admit reserved, in a finally"
        answer = [10, 13, 10, 13]
        engine = lab.engine(engine_cls, lab.scripted(3, answer, fail_at=4))
        lab.raises(ArithmeticError, lambda: engine.generate([5, 6, 7], lab.params(4)), code, "a model that fails")
        (run,) = lab.run(engine, [5, 6, 7], lab.params(4))
        lab.equal(run.token_ids, answer, code, "generated again after a step had raised", hint)
        flawed = lab.engine(engine_cls, lab.constant(np_nan(lab)), None)
        did = "generated from logits that are NaN"
        lab.raises(MinferError, lambda: flawed.generate([5], lab.params(2)), code, did, "is each drawn id checked?")

    def test_P0_31_timestamps_tell_the_order_of_events(self, engine_cls, lab):
        code, hint = "P0-31", "seconds of engine.device.clock(): arrived, scheduled, one per token, finished"
        model = lab.model()
        (run,) = lab.run(lab.engine(engine_cls, model), lab.prompt(model, 4), lab.params(5))
        times = run.completion.timestamps
        lab.equal(len(times.tokens), 5, code, "counted the times of 5 tokens", hint)
        order = [times.arrived, times.scheduled, *times.tokens, times.finished]
        known = [time for time in order if time is not None]
        lab.equal(len(known), len(order), code, "counted the times that are known after the end", hint)
        lab.equal(known, sorted(known), code, "put the times of a request in order", hint)
        lab.equal(run.completion.finish_reason, FinishReason.LENGTH, code, "looked at why it ended", hint)


def np_nan(lab):
    import torch

    return torch.full((lab.sizes.vocab,), float("nan"))
