"""StreamDecoder: pieces that join to the one-shot text, never half a character, and constant work per token."""

import codecs
import functools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minfer.core.errors import TokenizerError
from minfer.core.tokenizer import load_tokenizer
from minfer.core.tokenizer.stream_decoder import EACH_BYTE, StreamDecoder, TokenBytes
from tests.core.tokenizer_folders import ALL_KINDS, SENTENCES, Library, folder_of

EMOJI = "🙂".encode()
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n漢é🙂"), max_size=30)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """kind -> its tokenizer"""
    root = tmp_path_factory.mktemp("tokenizers")
    return functools.cache(lambda kind: load_tokenizer(folder_of(kind, root)))


def any_ids(tokenizer):
    """Any ids, also some that only a wider head has; single bytes and control tokens often."""
    often = [*range(3, 259), *sorted(tokenizer.special_ids) * 20, tokenizer.vocab_size + 5]
    return st.lists(st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(often), max_size=20)


def stream(tokenizer, prompt_ids, ids):
    decoder = tokenizer.stream_decoder(prompt_ids)
    return [*map(decoder.push, ids), decoder.finish()]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_pieces_join_to_the_one_shot_text_whatever_the_ids(load, kind):
    tokenizer = load(kind)

    @settings(max_examples=70, deadline=None)
    @given(any_ids(tokenizer), any_ids(tokenizer))
    def check(prompt_ids, ids):
        assert "".join(stream(tokenizer, prompt_ids, ids)) == tokenizer.decode_after(prompt_ids, ids)
        assert tokenizer.decode_after([], ids) == "".join(stream(tokenizer, (), ids))
        inside = [i for i in ids if i < tokenizer.vocab_size]
        assert tokenizer.decode_after((), inside) == tokenizer.decode(inside)

    check()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_text_cut_anywhere_is_what_the_library_adds_after_the_cut(load, kind):
    """The oracle decodes prompt and answer together; cuts inside a character are the next test's."""
    tokenizer, library = load(kind), Library(kind)

    @settings(max_examples=60, deadline=None)
    @given(texts, st.data())
    def check(text, data):
        ids = library.encode(text)
        cut = data.draw(st.integers(0, len(ids)))
        before, whole = library.decode(ids[:cut]), library.decode(ids)
        if "\ufffd" not in before:
            assert before + "".join(stream(tokenizer, ids[:cut], ids[cut:])) == whole

    check()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_token_gives_all_characters_that_are_whole_and_no_half_one(load, kind):
    tokenizer, library = load(kind), Library(kind)
    truth = Library("bpe" if kind.startswith("llama2") else kind)  # see test_tokenizer_decode.py

    @settings(max_examples=60, deadline=None)
    @given(texts.filter(lambda text: "\ufffd" not in text))
    @example("🙂漢 é🙂")
    def check(text):
        ids, so_far = library.encode(text), ""
        decoder = tokenizer.stream_decoder()
        for count, token_id in enumerate(ids, start=1):
            piece = decoder.push(token_id)
            so_far += piece
            assert "\ufffd" not in piece
            assert so_far == truth.decode(ids[:count]).rstrip("\ufffd")
        assert decoder.finish() == ""

    check()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "llama2", "llama2-legacy", "gpt2"])
def test_the_space_between_prompt_and_answer_is_there_once(load, kind):
    tokenizer, library = load(kind), Library(kind)
    sea = [i for i in library.encode("the sea") if i not in library.encode("the")]
    assert tokenizer.decode_after(library.encode("the"), sea) == " sea"
    assert tokenizer.decode_after([], sea) == (" sea" if kind == "gpt2" else "sea")
    bos = [] if kind == "gpt2" else [1]
    assert tokenizer.decode_after([*bos, *library.encode("the")], sea) == " sea"
    assert tokenizer.decode_after(bos, sea) == (" sea" if kind == "gpt2" else "sea")


def test_control_tokens_are_shown_where_they_are_asked_for(load):
    tokenizer = load("bpe")
    ids = Library("bpe").encode("the sea")
    assert tokenizer.decode_after([1], [*ids, 2]) == "the sea"
    assert tokenizer.decode_after([1], [*ids, 2], skip_special_tokens=False) == " the sea</s>"


def byte_table(errors="replace", opening=None, leading=0):
    """Ids 0 … 255 are the bytes, 256 is " a", 257 is " "."""
    inside = [bytes([i]) for i in range(256)] + [b" a", b" "]
    return TokenBytes(inside, opening or inside, leading, errors)


@pytest.mark.parametrize("errors", ["replace", EACH_BYTE])
def test_any_bytes_in_any_pieces_decode_as_all_at_once(errors):
    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from([*EMOJI, *b"a\xc3\xa9\xed\xa0\x80\xff\xf4\x90\xc0\xe6\xbc"]), max_size=12))
    def check(ids):
        decoder = StreamDecoder(byte_table(errors))
        assert "".join(map(decoder.push, ids)) + decoder.finish() == bytes(ids).decode("utf-8", errors)
        assert StreamDecoder(byte_table(errors)).push_all(ids) == codecs.getincrementaldecoder("utf-8")(errors).decode(
            bytes(ids)
        )

    check()


@pytest.mark.parametrize(
    ("errors", "pieces"),
    [("replace", ["", "", "", "\ufffda", ""]), (EACH_BYTE, ["", "", "", "\ufffd\ufffd\ufffda", ""])],
)
def test_a_broken_character_is_given_out_as_soon_as_it_is_known_to_be_broken(errors, pieces):
    decoder = StreamDecoder(byte_table(errors))
    assert [*map(decoder.push, [*EMOJI[:3], ord("a")]), decoder.finish()] == pieces


def test_what_is_held_back_comes_out_at_the_end_once():
    decoder = StreamDecoder(byte_table())
    assert decoder.push(EMOJI[0]) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_a_character_that_the_prompt_begins_belongs_to_the_answer():
    decoder = StreamDecoder(byte_table(), EMOJI[:2])
    assert [*map(decoder.push, EMOJI[2:])] == ["", "🙂"]


@pytest.mark.parametrize(
    ("leading", "ids", "text"),
    [
        (0, [257, 256], "  a"),
        (1, [256, 256], "a a"),
        (1, [257, 256], " a"),
        (1, [257, 257, 256], "  a"),
        (float("inf"), [257, 257, 256, 256], "a a"),
        (1, [EMOJI[0], 256], "\ufffd a"),
        (1, [258, 256], "a"),
    ],
)
def test_a_leading_space_is_dropped_as_often_as_the_table_says(leading, ids, text):
    table = byte_table(opening=[*byte_table().inside[:256], b"a", b""], leading=leading)
    for cut in range(len(ids) + 1):
        before = StreamDecoder(table).push_all(ids[:cut])
        decoder = StreamDecoder(table, ids[:cut])
        assert before + decoder.push_all(ids[cut:]) + decoder.finish() == text


def test_the_work_per_token_does_not_grow_with_the_text():
    """Counted, not timed: how often the table is read, and how many bytes wait."""

    class Counting(list):
        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return super().__getitem__(index)

    inside = Counting(byte_table().inside)
    decoder = StreamDecoder(TokenBytes(inside, inside, 1, "replace"))
    ids = list("The sea was grey. 漢🙂".encode()) * 200
    for count, token_id in enumerate(ids, start=1):
        decoder.push(token_id)
        waiting, _ = decoder._decode_utf8.__self__.getstate()
        assert len(waiting) <= 3
        assert inside.reads <= 3 * count


def test_an_id_past_the_table_stands_for_nothing_and_a_negative_one_is_an_error():
    decoder = StreamDecoder(byte_table(), [10**9])
    assert decoder.push(258) == ""
    for give in (decoder.push, lambda i: decoder.push_all([i]), lambda i: StreamDecoder(byte_table(), [i])):
        with pytest.raises(TokenizerError, match=r"^token id -1 is negative: ids are 0 to 257$"):
            give(-1)


def test_a_whole_book_streams_as_it_decodes(load):
    ids = load("gpt2").encode(" ".join(SENTENCES) * 20)
    assert "".join(stream(load("gpt2"), (), ids)) == load("gpt2").decode(ids)
