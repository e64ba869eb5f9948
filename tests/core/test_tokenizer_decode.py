"""decode: the text that the libraries give, for ids that a text has and for ids that no text has."""

import functools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from minfer.core.tokenizer import load_tokenizer
from tests.core.tokenizer_folders import (
    ALL_KINDS,
    JSON_KINDS,
    MODEL_KINDS,
    SENTENCES,
    TRICKY,
    Library,
    folder_of,
    sentencepiece_model,
    write_folder,
)

BYTE_LEVEL = ["gpt2", "llama3", "qwen"]
BYTE_FALLBACK = ["llama2", "llama2-legacy", *MODEL_KINDS]
FIRST_BYTE = 3  # the id of <0x00> in all of these
SPACE_BYTE = FIRST_BYTE + 0x20


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """kind -> its tokenizer"""
    root = tmp_path_factory.mktemp("tokenizers")
    return functools.cache(lambda kind: load_tokenizer(folder_of(kind, root)))


def id_lists(tokenizer, often=()):
    """Lists of any ids, in which those of single bytes (and `often`) are as frequent as all others together."""
    some = [*range(FIRST_BYTE, FIRST_BYTE + 256), *often]
    return st.lists(st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(some), max_size=24)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_decoding_an_encoded_text_gives_what_the_library_gives(load, kind):
    tokenizer, library = load(kind), Library(kind)
    for text in [*TRICKY, *SENTENCES]:
        ids = library.encode(text)
        assert tokenizer.decode(ids) == library.decode(ids), text
        assert tokenizer.decode(tokenizer.encode(text)) == library.decode(ids), text


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_any_ids_of_a_byte_level_vocabulary_decode_as_in_its_library(load, kind):
    tokenizer, library = load(kind), Library(kind).tokenizer

    @settings(max_examples=100, deadline=None)
    @given(id_lists(tokenizer), st.booleans())
    def check(ids, skip):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == library.decode(ids, skip_special_tokens=skip)

    check()


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_any_ids_of_a_byte_fallback_vocabulary_decode_as_in_sentencepiece(load, kind):
    """Also those of a tokenizer.json: its library gives up on every character of a run of bytes that has one bad byte,
    so that no byte could be shown before the run ends."""
    tokenizer = load(kind)
    library = Library("bpe" if kind in JSON_KINDS else kind)
    space = library.tokenizer.piece_to_id("▁")

    @settings(max_examples=100, deadline=None)
    @given(id_lists(tokenizer, often=[space] * 60))
    def check(ids):
        if kind in JSON_KINDS:  # there a leading <0x20> is a space like any other: see the next test
            ids = [i for i in ids if i != SPACE_BYTE]
        assert tokenizer.decode(ids) == library.decode(ids)

    check()


@pytest.mark.parametrize("kind", ["llama2", "llama2-legacy"])
def test_ids_that_are_valid_text_decode_as_in_the_library_of_their_tokenizer_json(load, kind):
    tokenizer, library = load(kind), Library(kind).tokenizer

    @settings(max_examples=100, deadline=None)
    @given(id_lists(tokenizer, often=[SPACE_BYTE] * 60), st.booleans())
    def check(ids, skip):
        text = library.decode(ids, skip_special_tokens=skip)
        if "\ufffd" not in text:
            assert tokenizer.decode(ids, skip_special_tokens=skip) == text

    check()


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_transformers_decodes_alike(load, kind):
    theirs = PreTrainedTokenizerFast(tokenizer_object=Library(kind).tokenizer, clean_up_tokenization_spaces=False)
    for text in SENTENCES[:7]:
        ids = [*load(kind).encode(text), *load(kind).special_ids]
        for skip in (True, False):
            assert load(kind).decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_control_tokens_are_left_out_or_spelled(load, kind):
    ids = [1, *Library(kind).encode("sea"), 2, 0]
    assert load(kind).decode(ids) == "sea"
    shown = load(kind).decode(ids, skip_special_tokens=False)
    assert shown.replace(" ", "") == "<s>sea</s><unk>"


def test_a_character_whose_bytes_a_control_token_parts_is_whole_again_without_it(load):
    head, tail = [FIRST_BYTE + 0xE6, FIRST_BYTE + 0xBC], [FIRST_BYTE + 0xA2]
    assert load("bpe").decode([*head, 2, *tail]) == "漢"
    assert load("bpe").decode([*head, 2, *tail], skip_special_tokens=False) == "\ufffd\ufffd</s>\ufffd"


WORDS = ["<unk>", "▁a", "a", "▁", "▁▁b", "a▁b", "<0xE6>", "<0xBC>", "<0xA2>", "<0x20>", "<0x41>b", "x y"]


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(),
        decoders.Metaspace("▁", prepend_scheme="first"),
        decoders.Metaspace("▁", prepend_scheme="never"),
        decoders.Metaspace("_"),
        decoders.Replace("▁", " "),
        decoders.Replace("a", "é▁"),
        decoders.Fuse(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 0)]),
        decoders.Sequence([decoders.Sequence([decoders.Replace("▁", " ")]), decoders.Fuse()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
        decoders.ByteFallback(),
    ],
    ids=str,
)
def test_every_decoder_that_is_read_decodes_as_the_library_does(tmp_path, decoder):
    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    library.add_special_tokens(["<unk>"])
    library.add_tokens([AddedToken("▁<added> é", normalized=False)])
    if decoder is not None:
        library.decoder = decoder
    tokenizer = load_tokenizer(write_folder(tmp_path, {"tokenizer.json": library.to_str()}))

    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.integers(0, len(WORDS)), max_size=6), st.booleans())
    def check(ids, skip):
        text = library.decode(ids, skip_special_tokens=skip)
        if "\ufffd" not in text:
            assert tokenizer.decode(ids, skip_special_tokens=skip) == text

    check()


def test_an_added_token_is_spelled_as_it_is_among_byte_level_tokens(tmp_path):
    data = json.loads(JSON_KINDS["gpt2"]())
    spellings = ["<a b>", "<｜begin▁of｜>", "\n\n", "ĠĠ!", "é b", "<a\u00a0b>"]
    entry = data["added_tokens"][0]
    data["added_tokens"] += [{**entry, "id": 420 + i, "content": text} for i, text in enumerate(spellings)]
    library = Tokenizer.from_str(json.dumps(data))
    tokenizer = load_tokenizer(write_folder(tmp_path, {"tokenizer.json": data}))
    for i in range(420, tokenizer.vocab_size):
        assert tokenizer.decode([i], skip_special_tokens=False) == library.decode([i], skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["tokenizer.model", "tokenizer.json"])
def test_ids_that_only_the_head_of_the_model_has_stand_for_nothing(tmp_path, kind):
    vocabulary = {"tokenizer.model": sentencepiece_model(), "tokenizer.json": JSON_KINDS["llama2"]()}[kind]
    tokenizer = load_tokenizer(write_folder(tmp_path, {kind: vocabulary, "config.json": {"vocab_size": 448}}))
    ids = tokenizer.encode("The sea")
    assert tokenizer.vocab_size == 420
    assert tokenizer.decode([447, *ids, 420]) == "The sea"
    assert tokenizer.decode_after(ids, [420, 447, 9999]) == ""
    decoder = tokenizer.stream_decoder([447])
    assert "".join(map(decoder.push, [420, *ids, 447, 9999])) + decoder.finish() == "The sea"


def test_a_hole_in_the_vocabulary_stands_for_nothing(tmp_path):
    added = {"added_tokens_decoder": {"423": {"content": "<end>", "special": False}}}
    files = {"tokenizer.model": sentencepiece_model(), "tokenizer_config.json": added}
    tokenizer = load_tokenizer(write_folder(tmp_path, files))
    assert tokenizer.vocab_size == 424
    assert tokenizer.decode([421, 423, 420]) == "<end>"


@pytest.mark.parametrize("wrap", [tuple, np.array, torch.tensor, lambda ids: map(np.int64, ids)])
def test_ids_may_come_from_arrays(load, wrap):
    assert load("bpe").decode(wrap(load("bpe").encode("The sea"))) == "The sea"
