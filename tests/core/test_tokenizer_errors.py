"""Bad tokenizer folders, texts and ids: what the user reads."""

import json

import pytest

from minfer.core.errors import TokenizerError
from minfer.core.tokenizer import load_tokenizer
from tests.core.tokenizer_folders import JSON_KINDS, folder_of, sentencepiece_model, write_folder

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
GPT2 = json.loads(JSON_KINDS["gpt2"]())
ADDED = GPT2["added_tokens"][0]


def changed(**parts):
    return {**GPT2, **parts}


def with_model(**parts):
    return changed(model={**GPT2["model"], **parts})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "{folder} holds neither tokenizer.json nor tokenizer.model: no tokenizer to read"),
        ({"tokenizer.model": b""}, "{folder}/tokenizer.model is not a SentencePiece model, or it is "),
        ({"tokenizer.model": "IQ== 0\nIg== 1\n"}, "{folder}/tokenizer.model is not a SentencePiece model, or it is "),
        (
            {"tokenizer.model": sentencepiece_model()[:-9]},
            "{folder}/tokenizer.model is not a SentencePiece model, or it is ",
        ),
        ({"tokenizer.model": LFS}, "{folder}/tokenizer.model is a Git-LFS pointer, not the file itself: run `git lfs "),
        ({"tokenizer.json": LFS}, "{folder}/tokenizer.json is a Git-LFS pointer, not the file itself: run `git lfs "),
        ({"tokenizer.json": "{"}, "{folder}/tokenizer.json is not valid JSON: Expecting property name"),
        ({"tokenizer.json": b"\xff{}"}, "{folder}/tokenizer.json is not valid JSON: "),
        ({"tokenizer.json": "[" * 100_000}, "{folder}/tokenizer.json is not valid JSON: "),
        ({"tokenizer.json": "[1]"}, "{folder}/tokenizer.json must hold a JSON object, not a list"),
        ({"tokenizer.json": {}}, "{folder}/tokenizer.json is not laid out as expected: KeyError: 'model'"),
        ({"tokenizer.json": {"model": []}}, "{folder}/tokenizer.json is not laid out as expected: TypeError: "),
        ({"tokenizer.json": {"model": {"vocab": 1}}}, "{folder}/tokenizer.json is not laid out as expected: "),
        ({"tokenizer.json": changed(added_tokens=[{}])}, "{folder}/tokenizer.json is not laid out as expected: "),
        ({"tokenizer.json": with_model(type="New")}, "{folder}/tokenizer.json is not what the package tokenizers "),
        ({"tokenizer.json": with_model(merges=[["q", "§"]])}, "{folder}/tokenizer.json is not what the package "),
        (
            {"tokenizer.json": changed(added_tokens=[{**ADDED, "id": 7}])},
            "{folder}/tokenizer.json: the added token '<|endoftext|>' has the id 7, but by the vocabulary it is 0",
        ),
        (
            {"tokenizer.json": changed(added_tokens=[{**ADDED, "content": "<x>", "id": 2**31}])},
            "the added token '<x>' has the id 2147483648: ids are integers below 16777216",
        ),
        (
            {"tokenizer.model": sentencepiece_model(), "added_tokens.json": {"<x>": -1}},
            "the added token '<x>' has the id -1: ids are integers below 16777216",
        ),
        (
            {"tokenizer.json": changed(decoder={"type": "CTC"})},
            "tokenizer.json: the decoder {{'type': 'CTC'}} is not supported; minfer knows ByteLevel, ByteFallback, ",
        ),
        (
            {"tokenizer.json": changed(decoder={"type": "Strip", "content": " ", "start": 1, "stop": 0})},
            "tokenizer.json: the decoder {{'type': 'Strip', ",
        ),
        (
            {"tokenizer.json": changed(decoder={"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"})},
            "tokenizer.json: the decoder {{'type': 'Replace', ",
        ),
        (
            {"tokenizer.json": GPT2, "tokenizer_config.json": {"eos_token": "</s>"}},
            "the eos_token is '</s>', which is not in the vocabulary: correct tokenizer_config.json",
        ),
        (
            {"tokenizer.model": sentencepiece_model(), "tokenizer_config.json": {"bos_token": "<bos>"}},
            "the bos_token is '<bos>', which is not in the vocabulary: correct tokenizer_config.json",
        ),
        (
            {"tokenizer.json": GPT2, "tokenizer_config.json": {"added_tokens_decoder": {"x": {}}}},
            "{folder}/tokenizer_config.json is not laid out as expected: ValueError: ",
        ),
        (
            {"tokenizer.json": GPT2, "tokenizer_config.json": {"chat_template": 5}},
            "{folder}/tokenizer_config.json is not laid out as expected: TypeError: chat_template is a int",
        ),
        (
            {"tokenizer.json": GPT2, "tokenizer_config.json": {"chat_template": [{"name": "rag", "template": ""}]}},
            "{folder}/tokenizer_config.json: none of its chat templates (rag) is the default",
        ),
        (
            {"tokenizer.json": GPT2, "generation_config.json": {"eos_token_id": "2"}},
            "{folder}/generation_config.json: eos_token_id must be a token id or a list of token ids, not '2'",
        ),
        (
            {"tokenizer.json": GPT2, "generation_config.json": {"eos_token_id": [2, -1]}},
            "{folder}/generation_config.json: eos_token_id must be a token id or a list of token ids, not [2, -1]",
        ),
        (
            {"tokenizer.json": GPT2, "config.json": {"eos_token_id": True}},
            "{folder}/config.json: eos_token_id must be a token id or a list of token ids, not True",
        ),
        ({"tokenizer.json": GPT2, "config.json": "no"}, "{folder}/config.json is not valid JSON: "),
    ],
)
def test_a_bad_folder_is_an_error_that_names_the_file(tmp_path, files, message):
    with pytest.raises(TokenizerError) as failure:
        load_tokenizer(write_folder(tmp_path, files))
    assert str(failure.value).startswith(message.format(folder=tmp_path))


def test_a_path_that_is_no_folder_is_an_error(tmp_path):
    with pytest.raises(TokenizerError, match=r"absent is not a folder: a tokenizer is read from a model's folder$"):
        load_tokenizer(tmp_path / "absent")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read: Is a directory$"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "llama2", "bpe"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "the text must be a string, not a NoneType"),
        (b"abc", "the text must be a string, not a bytes"),
        (["abc"], "the text must be a string, not a list"),
        (
            "abc\ud83d",
            "the text is not valid Unicode: character 3 is the lone surrogate U+D83D; read it again with errors=",
        ),
        ("\udcff", "the text is not valid Unicode: character 0 is the lone surrogate U+DCFF; "),
    ],
)
def test_what_is_not_text_cannot_be_encoded(tmp_path, kind, text, message):
    with pytest.raises(TokenizerError) as failure:
        load_tokenizer(folder_of(kind, tmp_path)).encode(text)
    assert str(failure.value).startswith(message)


@pytest.mark.parametrize("kind", ["gpt2", "llama2", "bpe"])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5, 420], "token id 420 at position 1 is outside the vocabulary of 420 tokens"),
        ([-1], "token id -1 at position 0 is outside the vocabulary of 420 tokens"),
        ([2**70], f"token id {2**70} at position 0 is outside the vocabulary of 420 tokens"),
        ([1.0], "token ids are integers, but position 0 holds a float"),
        ("ab", "token ids are integers, but position 0 holds a str"),
        ([5, None], "token ids are integers, but position 1 holds a NoneType"),
        ([[5]], "token ids are integers, but position 0 holds a list"),
    ],
)
def test_what_is_no_token_id_cannot_be_decoded(tmp_path, kind, ids, message):
    with pytest.raises(TokenizerError) as failure:
        load_tokenizer(folder_of(kind, tmp_path)).decode(ids)
    assert str(failure.value) == message


def test_an_id_past_a_wider_head_is_named_with_the_heads_size(tmp_path):
    write_folder(folder_of("bpe", tmp_path), {"config.json": {"vocab_size": 448}})
    with pytest.raises(TokenizerError, match=r"^token id 448 at position 0 is outside the vocabulary of 448 tokens$"):
        load_tokenizer(tmp_path / "bpe").decode([448])


def test_a_vocabulary_that_cannot_spell_a_text_says_so(tmp_path):
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}
    tokenizer = load_tokenizer(write_folder(tmp_path, {"tokenizer.json": changed(model=model, added_tokens=[])}))
    with pytest.raises(TokenizerError, match=r"^tokenizer\.json cannot encode this text: "):
        tokenizer.encode("b")
