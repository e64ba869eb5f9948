"""Phase 1: when a request ends, what is its text, and what is said to have ended it."""

import pytest

from minfer.core.sequence import FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def ending(completion):
    return completion.token_ids, completion.finish_reason, completion.stop_reason, completion.text


def test_P1_08_the_stop_rules(engine_cls, lab):
    code, eos, other = "P1-08", lab.eos, 9
    pieces = {eos: b"</s>", 5: b"five", 6: b"six", 7: b"seven", other: b"nine"}
    cases = [  # what the model says, what is asked, tokens that come, why it ends, by what, the text
        ([5, 6, eos], {"max_tokens": 8}, 3, STOP, eos, "fivesix"),
        ([eos, 5, 6], {"max_tokens": 8}, 1, STOP, eos, ""),
        ([5, 6, eos], {"max_tokens": 3}, 3, STOP, eos, "fivesix"),
        ([5, 6, eos], {"max_tokens": 2}, 2, LENGTH, None, "fivesix"),
        ([5, 6, eos], {"max_tokens": 1}, 1, LENGTH, None, "five"),
        ([eos, 5, 6], {"max_tokens": 1}, 1, STOP, eos, ""),
        ([5, 6, 7], {"max_tokens": 0}, 0, LENGTH, None, ""),
        ([5, eos, 7], {"max_tokens": 3, "ignore_eos": True}, 3, LENGTH, None, "five</s>seven"),
        ([5, other, 7], {"max_tokens": 3}, 2, STOP, other, "five"),
        ([5, 7, 6], {"max_tokens": 3, "stop_token_ids": [7]}, 2, STOP, 7, "five"),
        ([5, 7, 6], {"max_tokens": 3, "stop_token_ids": [7], "ignore_eos": True}, 2, STOP, 7, "five"),
    ]
    for answer, asked, tokens, why, by, text in cases:
        tokenizer = lab.tokenizer(pieces, eos=(eos, other))
        engine = lab.engine(engine_cls, lab.scripted(2, answer), tokenizer)
        (completion,) = engine.generate([[10, 11]], lab.params(**{"ignore_eos": False, **asked}))
        said = " ".join("EOS" if token == eos else str(token) for token in answer)
        did = f"a model that says {said} …, end tokens EOS and {other}, asked with {asked}"
        want = ([*answer][:tokens], why, by, text)
        hint = "the end token is counted and kept in token_ids, but is no text; max_tokens is a limit, not a wish"
        lab.equal(list(ending(completion)), list(want), code, did, hint)


def test_P1_14_end_tokens_of_the_config_without_a_tokenizer(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.scripted(1, [5, 6, 7], eos_token_id=[6, 8]))
    (run,) = lab.run(engine, [10], lab.params(3, ignore_eos=False))
    did = "a model whose config has the end tokens 6 and 8, and which says 5 6 7"
    lab.equal(run.token_ids, [5, 6], "P1-14", did, "eos_token_id may be a list")


@pytest.mark.points(needs="P1-08")
def test_P1_15_no_end_before_min_tokens(engine_cls, lab):
    code, hint = "P1-15", "before min_tokens an end token cannot be drawn, and nothing ends the text"
    logits = [0.0] * lab.sizes.vocab
    logits[lab.eos], logits[7] = 9.0, 5.0
    constant = lab.constant(_tensor(logits))
    engine = lab.engine(engine_cls, constant, lab.tokenizer({7: b"ab"}))
    asked = lab.params(6, min_tokens=3, ignore_eos=False)
    (run,) = lab.run(engine, [[10]], asked)
    did = "a model that always wants to end, asked for at least 3 tokens"
    lab.equal(run.token_ids, [7, 7, 7, lab.eos], code, did, hint)
    asked = lab.params(6, min_tokens=3, stop=["ba"], logit_bias={lab.eos: -50.0})
    (run,) = lab.run(engine, [[10]], asked)
    did = "'ab' said again and again, with the stop string 'ba' and at least 3 tokens"
    lab.equal([run.token_ids, run.completion.text], [[7] * 4, "ababa"], code, did, hint)


@pytest.mark.points(needs="P1-08")
def test_P1_16_stop_strings(engine_cls, lab):
    code, hint = "P1-16", "hold back what may become a stop string; cut at its first character"
    pieces = {5: b"Hello", 6: b", wor", 7: b"ld! ", 8: b"And", 9: b" more"}
    cases = [
        (["world"], "Hello, ", "world", 3),
        ([", w", "world"], "Hello", ", w", 2),
        (["! A", "And m"], "Hello, world", "! A", 4),
        (["Hello"], "", "Hello", 1),
        (["ld! Or"], "Hello, world! And more", None, 5),
        ([" more"], "Hello, world! And", " more", 5),
    ]
    for stop, text, by, tokens in cases:
        engine = lab.engine(engine_cls, lab.scripted(2, [5, 6, 7, 8, 9]), lab.tokenizer(pieces))
        params = lab.params(5, stop=stop)
        (completion,) = engine.generate([[10, 11]], params)
        did = f"'Hello, world! And more' in five tokens, with the stop strings {stop}"
        want = [text, by, STOP if by else LENGTH, tokens]
        got = [completion.text, completion.stop_reason, completion.finish_reason, len(completion.token_ids)]
        lab.equal(got, want, code, did, hint)
        lab.equal("".join(engine.stream([10, 11], params)), text, code, f"{did}, streamed", hint)


def _tensor(values):
    import torch

    return torch.tensor(values)
