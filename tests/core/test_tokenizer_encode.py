"""encode: the ids of the libraries that the files belong to, BOS and EOS as the files say, and text stays text."""

import functools
import json
import sys

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from minfer.core.errors import MissingExtra
from minfer.core.tokenizer import load_tokenizer
from minfer.core.tokenizer.json_tokenizer import JsonTokenizer
from minfer.core.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.core.tokenizer_folders import (
    ALL_KINDS,
    JSON_KINDS,
    SENTENCES,
    TRICKY,
    Library,
    byte_level_json,
    folder_of,
    llama2_json,
    sentencepiece_model,
    write_folder,
)

KEEPS_SPACES = [k for k in ALL_KINDS if k not in ("no-extra-spaces", "llama2")]  # these two drop some by their files
CHATML = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """kind -> its tokenizer"""
    root = tmp_path_factory.mktemp("tokenizers")
    return functools.cache(lambda kind: load_tokenizer(folder_of(kind, root)))


@pytest.fixture
def load_files(tmp_path):
    """name=content, … -> the tokenizer of a folder with these files (some under shorter names)"""
    names = {"model": "tokenizer.model", "tokenizer": "tokenizer.json", "config": "tokenizer_config.json"}
    names["model_config"] = "config.json"

    def load(**files):
        return load_tokenizer(write_folder(tmp_path, {names.get(k, f"{k}.json"): v for k, v in files.items()}))

    return load


# --- plain text ---


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_text_gets_the_ids_that_the_library_gives_it(load, kind):
    tokenizer, library = load(kind), Library(kind)
    for text in [*TRICKY, *SENTENCES]:
        assert tokenizer.encode(text, add_special_tokens=False) == library.encode(text), text


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_any_text_gets_the_ids_that_the_library_gives_it(load, kind):
    tokenizer, library = load(kind), Library(kind)

    @settings(max_examples=60, deadline=None)
    @given(texts)
    def check(text):
        assert tokenizer.encode(text, add_special_tokens=False) == library.encode(text)

    check()


@pytest.mark.parametrize("kind", KEEPS_SPACES)
def test_no_space_of_a_prompt_is_lost(load, kind):
    for text in ["  Hello", "Hello  ", " \n Hello \n\n", "   "]:
        assert load(kind).decode(load(kind).encode(text)) == text


@pytest.mark.parametrize("kind", ["gpt2", "llama2", "bpe"])
def test_a_very_long_text_is_encoded_whole(load, kind):
    text = "The sea was grey, and the wind came over the long grass. " * 4000
    assert load(kind).decode(load(kind).encode(text)) == text


def test_the_cut_and_the_padding_that_a_tokenizer_json_asks_for_are_for_training_only(load_files):
    library = LibraryTokenizer.from_str(byte_level_json("gpt2"))
    library.enable_truncation(max_length=3)
    library.enable_padding(length=50)
    assert load_files(tokenizer=library.to_str()).encode(SENTENCES[0]) == Library("gpt2").encode(SENTENCES[0])


# --- BOS and EOS ---


@pytest.mark.parametrize(
    ("kind", "config", "front", "behind"),
    [
        ("gpt2", {}, [], []),
        ("qwen", {}, [], []),
        ("qwen", {**CHATML}, [], []),
        ("qwen", {**CHATML, "add_bos_token": False}, [], []),
        ("qwen", {**CHATML, "add_bos_token": True}, [421], []),
        ("qwen", {**CHATML, "add_eos_token": True}, [], [422]),
        ("qwen", {"bos_token": None, "add_bos_token": True}, [], []),
        ("llama3", {}, [420], []),
        ("llama3", {"bos_token": "<|begin|>"}, [420], []),
        ("llama3", {"bos_token": "<|begin|>", "add_bos_token": True}, [420], []),
        ("llama3", {"bos_token": "<|begin|>", "add_bos_token": False}, [], []),
        ("llama3", {"eos_token": {"content": "<|eot|>"}, "add_eos_token": True}, [420], [421]),
        ("llama2", {}, [1], []),
        ("bpe", {}, [1], []),
        ("bpe", {"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ("bpe", {"add_bos_token": False}, [], []),
        ("bpe", {"bos_token": None}, [], []),
        ("bpe", {"bos_token": {"content": "</s>", "lstrip": False}}, [2], []),
    ],
)
def test_bos_and_eos_are_added_as_the_files_say(tmp_path, kind, config, front, behind):
    tokenizer = load_tokenizer(write_folder(folder_of(kind, tmp_path), {"tokenizer_config.json": config}))
    for text in ["The sea", " ", "<s>"]:
        assert tokenizer.encode(text) == front + Library(kind).encode(text) + behind
        assert tokenizer.encode(text, add_special_tokens=False) == Library(kind).encode(text)
    assert tokenizer.encode("") == front + behind
    assert tokenizer.bos_token_id == (front[0] if front else None)


def test_special_tokens_map_names_tokens_where_the_config_does_not(load_files):
    tokenizer = load_files(
        tokenizer=byte_level_json("qwen"), special_tokens_map={**CHATML, "pad_token": None}, config={"eos_token": None}
    )
    assert tokenizer.eos_token_ids == ()
    assert load_files(config={"add_bos_token": True}).encode("")[0] == 421


def test_a_post_processor_that_adds_both_ends_is_followed(load_files):
    data = json.loads(llama2_json(False))
    data["post_processor"] = {"type": "BertProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]}
    tokenizer = load_files(tokenizer=data)
    assert tokenizer.encode("The sea") == [1, *Library("llama2").encode("The sea"), 2]


@pytest.mark.parametrize(("kind", "bos"), [("llama3", "<|begin|>"), ("llama2", "<s>"), ("bpe", "<s>")])
def test_bos_is_not_doubled_when_the_text_begins_with_it(load, kind, bos):
    ids = load(kind).encode(f"{bos}Hello", parse_special=True)
    assert ids.count(load(kind).bos_token_id) == 1
    assert ids == load(kind).encode(f"{bos}Hello", parse_special=True, add_special_tokens=False)


def test_eos_is_not_doubled_when_the_text_ends_with_it(load_files):
    tokenizer = load_files(model=sentencepiece_model(), config={"add_eos_token": True})
    assert tokenizer.encode("Hello</s>", parse_special=True).count(2) == 1
    assert tokenizer.encode("Hello", parse_special=True)[-1] == 2


def test_end_tokens_are_united_in_the_order_of_the_files(load_files):
    tokenizer = load_files(
        model=sentencepiece_model(),
        config={"eos_token": "</s>"},
        generation_config={"eos_token_id": [7, 2, 500]},
        model_config={"eos_token_id": 9},
    )
    assert tokenizer.eos_token_ids == (2, 7, 500, 9)


# --- control tokens: text that spells one, and text that means one ---


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_text_that_spells_control_tokens_stays_text(load, kind):
    tokenizer = load(kind)
    spellings = [tokenizer.decode([i], skip_special_tokens=False) for i in sorted(tokenizer.special_ids - {0})]
    for text in ["".join(spellings), "a" + " ".join(spellings), "\n".join(spellings)]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.special_ids.isdisjoint(ids), text
        assert tokenizer.decode(ids).split() == text.split()


def test_merges_that_spell_a_control_token_do_not_make_it(load_files):
    """Some converters write merges for every piece that has two halves, control tokens among them."""
    data = json.loads(byte_level_json("gpt2"))
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    for merge in (["<", "s"], ["<s", ">"], ["<s>", "x"]):
        merges.insert(0, merge)
        vocab.setdefault("".join(merge), len(vocab))
    data["added_tokens"].append({**data["added_tokens"][0], "id": vocab["<s>"], "content": "<s>"})
    tokenizer = load_files(tokenizer=data)
    assert vocab["<s>"] in LibraryTokenizer.from_str(json.dumps(data)).encode("<s>").ids
    assert vocab["<s>"] not in tokenizer.encode("<s>") + tokenizer.encode("<s>x")
    assert tokenizer.decode(tokenizer.encode("<s>x")) == "<s>x"
    assert tokenizer.encode("<s>", parse_special=True) == [vocab["<s>"]]


def test_a_text_that_holds_the_private_spelling_of_another_load_is_text(load, tmp_path):
    other = load_tokenizer(folder_of("qwen", tmp_path))
    text = "".join(other._private.values()) + "\ufdd01a5\ufdd1"
    ids = load("qwen").encode(text)
    assert load("qwen").special_ids.isdisjoint(ids)
    assert load("qwen").decode(ids) == text


def test_a_control_token_of_one_character_leaves_that_character_to_the_text(load_files):
    """Fine-tunes take "!" for padding. No other token could then spell it."""
    data = json.loads(byte_level_json("gpt2"))
    data["added_tokens"].append({**data["added_tokens"][0], "id": data["model"]["vocab"]["!"], "content": "!"})
    data["model"]["merges"].insert(0, ["e", "!"])
    data["model"]["vocab"]["e!"] = len(data["model"]["vocab"])
    data["added_tokens"].append({**data["added_tokens"][0], "id": 421, "content": "<|end|>"})
    tokenizer = load_files(tokenizer=data, config={"pad_token": "!"})
    library = LibraryTokenizer.from_str(json.dumps(data))
    library.encode_special_tokens = True
    assert tokenizer.encode("Hi! See!") == library.encode("Hi! See!").ids
    assert tokenizer.encode("<|end|>!", parse_special=True) == [421, data["model"]["vocab"]["!"]]


def test_a_piece_of_one_character_that_the_config_takes_for_padding_is_left_to_the_text(load_files):
    tokenizer = load_files(model=sentencepiece_model(), config={"pad_token": "w"})
    assert tokenizer.encode("ww wind", add_special_tokens=False) == Library("bpe").encode("ww wind")


def test_what_a_vocabulary_cannot_spell_is_its_unknown_token(load_files):
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "<s>": 1, "sea": 2}, "unk_token": "<unk>"}
    data = {**json.loads(llama2_json(False)), "model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    tokenizer = load_files(tokenizer={**data, "added_tokens": data["added_tokens"][:2]})
    assert tokenizer.encode("the <s> sea") == [1, 0, 0, 2]
    assert tokenizer.encode("the <s> sea", parse_special=True) == [1, 0, 1, 2]


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_parsed_control_tokens_get_the_librarys_ids(load, kind):
    tokenizer, library = load(kind), Library(kind).tokenizer
    library.encode_special_tokens = False
    spellings = [library.id_to_token(i) for i in sorted(tokenizer.special_ids)]

    @settings(max_examples=60, deadline=None)
    @given(st.lists(texts | st.sampled_from([*spellings, " ", "<tool_call>", "</think>"]), max_size=6).map("".join))
    def check(text):
        ids = tokenizer.encode(text, parse_special=True, add_special_tokens=False)
        assert ids == library.encode(text, add_special_tokens=False).ids

    check()


@pytest.mark.parametrize("config", [{"legacy": False}, {"legacy": True}, {}])
def test_sentencepiece_puts_its_prefix_after_control_tokens_unless_it_is_not_legacy(load_files, config):
    tokenizer = load_files(model=sentencepiece_model(), config=config)
    library = LibraryTokenizer.from_str(llama2_json(config.get("legacy", True)))
    for text in ["<s>The sea</s>was<s></s>\n grey", "The<s>sea", "<s>"]:
        assert tokenizer.encode(text, parse_special=True) == library.encode(text).ids[not text.startswith("The") :]


@pytest.mark.parametrize("kind", ["gpt2", "bpe"])
def test_of_control_tokens_that_begin_alike_the_longest_is_meant(tmp_path, kind):
    entries = {str(420 + i): {"content": text, "special": True} for i, text in enumerate(["<a", "<a>", "<a>>", "a>"])}
    folder = write_folder(folder_of(kind, tmp_path), {"tokenizer_config.json": {"added_tokens_decoder": entries}})
    ids = load_tokenizer(folder).encode("<a><a<a>>a>", add_special_tokens=False, parse_special=True)
    assert ids == [421, 420, 422, 423]


@pytest.mark.parametrize("kind", ["tokenizer.model", "tokenizer.json"])
def test_white_space_and_words_beside_an_added_token_are_taken_as_its_flags_say(load_files, kind):
    flags = [
        {"content": "<left>", "lstrip": True},
        {"content": "<right>", "rstrip": True},
        {"content": "word", "single_word": True},
        {"content": "<plain>", "special": False, "rstrip": True},
    ]
    flags = [{"lstrip": False, "rstrip": False, "single_word": False, "special": True, **flag} for flag in flags]
    data = json.loads(llama2_json(False))
    data["added_tokens"] += [{**flag, "id": 420 + i, "normalized": False} for i, flag in enumerate(flags)]
    if kind == "tokenizer.json":
        tokenizer = load_files(tokenizer=data)
    else:
        decoder = {str(420 + i): flag for i, flag in enumerate(flags)}
        tokenizer = load_files(model=sentencepiece_model(), config={"added_tokens_decoder": decoder, "legacy": False})
    library = LibraryTokenizer.from_str(json.dumps(data))
    for text in ["a \n<left> b", "a <right> \n b", "a word, words, word", "swordword word", "The<plain>  sea"]:
        assert tokenizer.encode(text, parse_special=True) == library.encode(text).ids, text
    library.encode_special_tokens = True
    assert tokenizer.encode("a <left> word <plain> b") == library.encode("a <left> word <plain> b").ids


def test_a_sentencepiece_model_has_no_prefix_where_the_config_forbids_it(load_files):
    config = {"add_prefix_space": False, "additional_special_tokens": ["ships"], "legacy": False}
    model = sentencepiece_model(user_defined_symbols="ships")
    tokenizer = load_files(model=model, config=config)
    plain = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = plain.encode("the ▁ sea")
    assert plain.id_to_piece(ids[0]).startswith("▁")
    assert tokenizer.encode(" the ▁ sea", add_special_tokens=False) == ids
    assert tokenizer.decode(ids) == " the   sea"
    assert "".join(map(plain.id_to_piece, tokenizer.encode("sea")[1:])) == "sea"


# --- tokens that only the files beside the vocabulary know ---


def test_added_tokens_decoder_adds_to_a_sentencepiece_model(load_files):
    entries = {"420": {"content": "<|im_start|>", "special": True}, "421": {"content": "<tool>", "special": False}}
    tokenizer = load_files(
        model=sentencepiece_model(),
        config={"added_tokens_decoder": entries, "eos_token": "<|im_end|>"},
        added_tokens={"<|im_start|>": 420, "<older>": 423, "<|im_end|>": 424},
    )
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids) == (425, (424,))
    assert tokenizer.special_ids == {0, 1, 2, 420, 424}
    assert tokenizer.decode([421, 420, 423, 422]) == "<tool><older>"
    ids = tokenizer.encode("<|im_start|><tool><older>")
    assert 420 not in ids
    assert ids[-2:] == [421, 423]
    assert tokenizer.encode("<|im_start|>", parse_special=True) == [1, 420]


def test_added_tokens_decoder_renames_a_reserved_piece(load_files):
    reserved = sentencepiece_model(user_defined_symbols="<reserved>")
    index = sentencepiece.SentencePieceProcessor(model_proto=reserved).piece_to_id("<reserved>")
    entry = {"content": "<|im_end|>", "special": True}
    tokenizer = load_files(model=reserved, config={"added_tokens_decoder": {str(index): entry}})
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [1, index]
    assert tokenizer.decode([index], skip_special_tokens=False) == "<|im_end|>"


def test_a_piece_that_the_config_names_is_a_control_token(load_files):
    model = sentencepiece_model(user_defined_symbols="<|turn|>,<|tool|>", normalization_rule_name="nmt_nfkc")
    index = sentencepiece.SentencePieceProcessor(model_proto=model).piece_to_id("<|turn|>")
    for config in ({"additional_special_tokens": ["<|turn|>"]}, {"extra_special_tokens": {"turn": "<|turn|>"}}):
        tokenizer = load_files(model=model, config=config)
        assert index in tokenizer.special_ids
        assert tokenizer.encode("a<|turn|>", parse_special=True)[-1] == index
        ids = tokenizer.encode("a<|turn|><|tool|>")
        assert index not in ids
        assert tokenizer.decode(ids) == "a<|turn|><|tool|>"


def test_the_config_adds_to_a_tokenizer_json(load_files):
    new, other, moved = ({"content": text, "special": True} for text in ("<|new|>", "<|other|>", "<|im_end|>"))
    entries = {"425": new, "421": other, "430": moved}  # where they contradict, tokenizer.json is right
    tokenizer = load_files(
        tokenizer=byte_level_json("qwen"),
        config={"added_tokens_decoder": entries, "additional_special_tokens": ["<tool_call>"]},
    )
    assert tokenizer.encode("<|new|><|im_start|><|im_end|>", parse_special=True) == [425, 421, 422]
    assert tokenizer.vocab_size == 426
    assert tokenizer.special_ids == {420, 421, 422, 423, 425}
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("<tool_call><|new|>"))


# --- which file is read ---


def both_kinds(tmp_path):
    return write_folder(tmp_path, {"tokenizer.json": llama2_json(False), "tokenizer.model": sentencepiece_model()})


def test_tokenizer_json_comes_first(tmp_path):
    assert isinstance(load_tokenizer(both_kinds(tmp_path)), JsonTokenizer)


def test_tokenizer_model_serves_where_the_package_for_the_other_is_absent(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer = load_tokenizer(str(both_kinds(tmp_path)))
    assert isinstance(tokenizer, SentencePieceTokenizer)
    assert tokenizer.encode("The sea") == [1, *Library("bpe").encode("The sea")]


def test_a_tokenizer_json_alone_names_the_extra_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    write_folder(tmp_path, {"tokenizer.json": llama2_json(False)})
    with pytest.raises(MissingExtra, match=r"^tokenizers is needed for reading tokenizer.json, .*minfer\[hf\]"):
        load_tokenizer(tmp_path)
