"""Sequence: when a request ends, why, with which text; its timestamps, pieces and seeds."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.core.sampling import SamplingParams
from minfer.core.sequence import Completion, FinishReason, Sequence, Status, sample_seed
from minfer.core.tokenizer.byte_tokenizer import ByteTokenizer

BYTES = ByteTokenizer(300)  # ids 0 … 255 are the bytes of the text
EOS, OTHER_EOS = 257, 258


def start(prompt="say", *, context=2**31, tokenizer=BYTES, index=0, arrived=0.0, eos=(EOS, OTHER_EOS), **params):
    ids = list(prompt.encode())
    return Sequence(
        ids,
        SamplingParams(**params),
        prompt=prompt,
        tokenizer=tokenizer,
        eos_token_ids=eos,
        context=context,
        index=index,
        arrived=arrived,
    )


def feed(sequence, *pieces):
    """Append the bytes of strings, and ids as they are, one step each, until it is finished."""
    ids = [token for piece in pieces for token in (piece.encode() if isinstance(piece, str) else [piece])]
    for now, token in enumerate(ids, start=1):
        if sequence.finished:
            break
        sequence.append(token, float(now))
    return sequence


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
RULES = {
    # name: (params, what the model draws, text, how many tokens, reason, stop_reason)
    "an end token": ({}, ["ab", EOS, "cd"], "ab", 3, STOP, EOS),
    "another end token": ({}, ["ab", OTHER_EOS], "ab", 3, STOP, OTHER_EOS),
    "an end token at once": ({}, [EOS], "", 1, STOP, EOS),
    "an end token that is ignored": (
        {"ignore_eos": True, "max_tokens": 3},
        ["a", EOS, "b"],
        "a<257>b",
        3,
        LENGTH,
        None,
    ),
    "an ignored end token that is a stop token": (
        {"ignore_eos": True, "stop_token_ids": [EOS]},
        ["a", EOS],
        "a",
        2,
        STOP,
        EOS,
    ),
    "an end token as token min_tokens": (
        {"min_tokens": 3, "max_tokens": 4},
        ["ab", EOS, "c"],
        "ab<257>c",
        4,
        LENGTH,
        None,
    ),
    "an end token after min_tokens": ({"min_tokens": 2}, ["ab", EOS], "ab", 3, STOP, EOS),
    "a stop token": ({"stop_token_ids": [ord("!")]}, ["ab!c"], "ab", 3, STOP, ord("!")),
    "a stop token as token min_tokens": (
        {"stop_token_ids": [ord("!")], "min_tokens": 3, "max_tokens": 4},
        ["ab!c"],
        "ab!c",
        4,
        LENGTH,
        None,
    ),
    "a stop string of one token": ({"stop": "!"}, ["ab!c"], "ab", 3, STOP, "!"),
    "a stop string across tokens": ({"stop": "stop"}, ["please stop now"], "please ", 11, STOP, "stop"),
    "a stop string that begins again": ({"stop": "aab"}, ["aaab"], "a", 4, STOP, "aab"),
    "the first of two stop strings": ({"stop": ["zzz", "b"]}, ["abzzz"], "a", 2, STOP, "b"),
    "the longer of two that end together": ({"stop": ["b", "ab"]}, ["xab"], "x", 3, STOP, "ab"),
    "a stop string as token min_tokens": (
        {"stop": "b", "min_tokens": 2, "max_tokens": 3},
        ["abc"],
        "abc",
        3,
        LENGTH,
        None,
    ),
    "a stop string after min_tokens": ({"stop": "c", "min_tokens": 2}, ["abc"], "ab", 3, STOP, "c"),
    "a stop string that straddles min_tokens": ({"stop": "bc", "min_tokens": 2}, ["abc"], "a", 3, STOP, "bc"),
    "half a stop string, then an end token": ({"stop": "stop"}, ["sto", EOS], "sto", 4, STOP, EOS),
    "half a stop string, then max_tokens": ({"stop": "stop", "max_tokens": 3}, ["stop"], "sto", 3, LENGTH, None),
    "a stop string with the last token": ({"stop": "op", "max_tokens": 4}, ["stop"], "st", 4, STOP, "op"),
    "an end token with the last token": ({"max_tokens": 2}, ["a", EOS], "a", 2, STOP, EOS),
    "an end token that is a stop token too": ({"stop_token_ids": [EOS]}, ["a", EOS], "a", 2, STOP, EOS),
    "max_tokens": ({"max_tokens": 2}, ["abc"], "ab", 2, LENGTH, None),
    "one token": ({"max_tokens": 1}, ["abc"], "a", 1, LENGTH, None),
    "no token": ({"max_tokens": 0}, ["abc"], "", 0, LENGTH, None),
    "half a character at the end": ({"max_tokens": 2}, ["aé"], "a�", 2, LENGTH, None),
    "half a character, then an end token": ({}, ["a", 0xC3, EOS], "a�", 3, STOP, EOS),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_request_ends_by(rule):
    params, drawn, text, count, reason, stop_reason = RULES[rule]
    sequence = feed(start(**params), *drawn)
    assert sequence.finished, "nothing ended it"
    done = sequence.completion()
    assert (done.text, len(done.token_ids), done.finish_reason, done.stop_reason) == (text, count, reason, stop_reason)
    assert sequence.token_ids == list(b"say") + done.token_ids


@pytest.mark.parametrize(("max_tokens", "text"), [(None, "abcd"), (9, "abcd"), (4, "abcd"), (3, "abc")])
def test_a_full_context_ends_with_length(max_tokens, text):
    sequence = feed(start(context=7, max_tokens=max_tokens), "abcdefghij")
    assert (sequence.text, sequence.finish_reason, sequence.stop_reason) == (text, LENGTH, None)
    assert sequence.max_length == 3 + len(text)


def test_without_a_tokenizer_ids_and_end_tokens_work_and_the_text_is_empty():
    done = feed(start(tokenizer=None, stop="ab"), "xyz", EOS).completion()
    assert (done.text, done.token_ids, done.stop_reason) == ("", [*b"xyz", EOS], EOS)


def test_timestamps_are_those_of_the_clock_in_the_order_of_events():
    sequence = start(arrived=0.5)
    assert dataclasses.astuple(sequence.timestamps) == (0.5, None, [], None, None)
    feed(sequence, "ab", EOS)
    assert dataclasses.astuple(sequence.completion().timestamps) == (0.5, None, [1.0, 2.0, 3.0], 3.0, None)
    assert start(max_tokens=0, arrived=0.5).timestamps.finished == 0.5


def test_taking_a_request_back_keeps_what_it_has_and_says_abort():
    sequence = feed(start(stop="stop"), "please st")
    assert sequence.take_text() == "please "
    sequence.finish(FinishReason.ABORT, now=20.0)
    done = sequence.completion()
    assert (done.text, done.finish_reason, done.stop_reason) == ("please st", FinishReason.ABORT, None)
    assert (done.timestamps.finished, sequence.status) == (20.0, Status.FINISHED)
    assert sequence.take_text() == "st"


def test_half_a_character_is_not_shown_when_a_request_is_taken_back():
    sequence = feed(start(), "a", 0xC3)
    sequence.finish(FinishReason.ABORT, now=3.0)
    assert sequence.completion().text == "a"


def test_ending_twice_changes_nothing():
    sequence = feed(start(), "ab", EOS)
    before = sequence.completion()
    sequence.finish(FinishReason.ABORT, now=99.0)
    assert sequence.completion() == before


def test_a_failed_step_is_told_in_the_completion():
    sequence = feed(start(), "ab")
    sequence.error = RuntimeError("out of memory")
    sequence.finish(FinishReason.ABORT, now=3.0)
    assert sequence.completion().error == "RuntimeError: out of memory"


def test_a_completion_is_asked_for_after_the_end_only():
    with pytest.raises(AssertionError, match="is still waiting"):
        start().completion()


@settings(deadline=None, max_examples=150)
@given(
    drawn=st.text(alphabet="abé☃", max_size=12),
    stop=st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=2),
    every=st.integers(1, 4),
    min_tokens=st.integers(0, 5),
)
def test_pieces_join_to_the_text_and_no_piece_is_taken_back(drawn, stop, every, min_tokens):
    sequence = start(stop=stop, min_tokens=min_tokens, max_tokens=20)
    pieces = []
    for now, token in enumerate(drawn.encode()):
        if sequence.finished:
            break
        sequence.append(token, float(now))
        if now % every == 0:
            pieces.append(sequence.take_text())
            assert "".join(pieces) == sequence.text
    if not sequence.finished:
        sequence.finish(FinishReason.ABORT, 99.0)
    pieces.append(sequence.take_text())
    assert "".join(pieces) == sequence.completion().text
    assert sequence.take_text() == ""
    if sequence.finish_reason is STOP and min_tokens == 0:
        assert not any(one in sequence.text for one in stop)
        assert drawn.startswith(sequence.text + sequence.stop_reason)


def test_what_the_caller_does_to_its_prompt_or_the_completion_does_not_reach_the_sequence():
    ids = [1, 2, 3]
    sequence = Sequence(ids, SamplingParams(max_tokens=1))
    ids.append(4)
    sequence.append(7, 1.0)
    done: Completion = sequence.completion()
    done.token_ids.append(8)
    assert (sequence.prompt_ids, sequence.token_ids, sequence.output_ids) == ([1, 2, 3], [1, 2, 3, 7], [7])


def test_the_first_sample_draws_what_a_single_one_would_and_the_others_draw_otherwise():
    assert sample_seed(5, 0) == 5
    seeds = [sample_seed(seed, index) for seed in (5, 6) for index in range(50)]
    assert len(set(seeds)) == 100
    assert seeds == [sample_seed(seed, index) for seed in (5, 6) for index in range(50)]


def test_without_a_seed_no_two_requests_draw_alike():
    assert len({start().seed for _ in range(50)}) == 50


def test_sequences_are_numbered_in_the_order_they_were_made():
    numbers = [start().id for _ in range(5)]
    assert numbers == sorted(set(numbers))
