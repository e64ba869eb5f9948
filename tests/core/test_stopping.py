"""StopChecker against a search of the whole text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.core.stopping import StopChecker


def run(stop, pieces, may_stop=()):
    """Push the pieces until one matches: (what was shown, the match). Flushes if none does."""
    checker, shown = StopChecker(stop), ""
    flags = may_stop or [True] * len(pieces)
    for piece, flag in zip(pieces, flags, strict=True):
        text, matched = checker.push(piece, flag)
        shown += text
        if matched is not None:
            assert checker.flush() == ""
            return shown, matched
    return shown + checker.flush(), None


def naive(stop, pieces, may_stop):
    """The same from the whole text: of all matches the one with the lowest end, then the longest."""
    text = "".join(pieces)
    allowed = [flag for piece, flag in zip(pieces, may_stop, strict=True) for _ in piece]
    for end in range(1, len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found and allowed[end - 1]:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(stop, text):
    """The longest end of `text` that a stop string may still grow out of."""
    for size in range(len(text), 0, -1):
        if any(one.startswith(text[-size:]) and len(one) > size for one in stop):
            return text[-size:]
    return ""


CASES = {
    "a stop string that spans three tokens": (["stop"], ["a s", "to", "p b"], "a ", "stop"),
    "nothing of it is left at the start": (["stop"], ["stop"], "", "stop"),
    "what follows the match is dropped": (["."], ["one. two."], "one", "."),
    "a false start is shown": (["abc"], ["ab", "ab", "d"], "ababd", None),
    "a restart inside a false start": (["aab"], ["a", "a", "a", "b"], "a", "aab"),
    "an unfinished stop string is flushed": (["stop"], ["sto"], "sto", None),
    "the match that is complete first wins": (["abcd", "bc"], ["abcd"], "a", "bc"),
    "a prefix of another stop string wins": (["abc", "ab"], ["xabc"], "x", "ab"),
    "of two that end together the longest wins": (["c", "abc", "bc"], ["xabc"], "x", "abc"),
    "a stop string of several bytes a character": (["終り"], ["物語の終", "り。"], "物語の", "終り"),
    "no stop strings": ([], ["a", "b"], "ab", None),
    "empty pieces": (["ab"], ["", "a", "", "b"], "", "ab"),
}


@pytest.mark.parametrize(("stop", "pieces", "shown", "matched"), CASES.values(), ids=CASES)
def test_stop_strings_are_cut_exactly(stop, pieces, shown, matched):
    assert run(stop, pieces) == (shown, matched)


TEXTS = st.text("ab", max_size=6)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@settings(deadline=None)
@given(STOPS, st.lists(st.tuples(TEXTS, st.booleans()), max_size=8))
def test_any_text_in_any_pieces_ends_as_a_search_of_the_whole_says(stop, pieces):
    texts, flags = [text for text, _ in pieces], [flag for _, flag in pieces]
    assert run(stop, texts, flags) == naive(stop, texts, flags)


@settings(deadline=None)
@given(STOPS, st.text("ab", max_size=30), st.data())
def test_the_pieces_do_not_matter(stop, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(stop, pieces) == run(stop, [text])


@settings(deadline=None)
@given(STOPS, st.lists(TEXTS, max_size=8))
def test_what_may_become_a_stop_string_is_held_back_and_nothing_more(stop, pieces):
    checker, text, shown = StopChecker(stop), "", ""
    for piece in pieces:
        text += piece
        shown += checker.push(piece, may_stop=False)[0]
        assert shown + held_back(stop, text) == text


def test_a_match_before_min_tokens_is_text_and_may_begin_the_next_match():
    assert run(["abab"], ["abab", "ab"], [False, True]) == ("ab", "abab")
    assert run(["abab"], ["abab", "xab"], [False, True]) == ("ababxab", None)
    assert run(["end"], ["end", "en", "d"], [False, False, True]) == ("end", "end")


def test_flush_gives_the_held_text_once():
    checker = StopChecker(["stop"])
    assert checker.push("a st") == ("a ", None)
    assert checker.flush() == "st"
    assert checker.flush() == ""


def test_a_long_text_of_near_matches_costs_time_in_proportion_to_its_length():
    checker, size = StopChecker(["a" * 500 + "b"]), 100_000
    start = time.perf_counter()
    shown = sum(len(checker.push("a")[0]) for _ in range(size))
    assert shown == size - 500
    assert time.perf_counter() - start < 10  # about 0.1 s; searching the whole text at each push takes minutes
