"""tokenizer.json: a vocabulary and the whole way from text to ids, run by the package tokenizers."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minfer.core.errors import TokenizerError
from minfer.core.extras import require
from minfer.core.tokenizer.special_tokens import AddedToken
from minfer.core.tokenizer.table_tokenizer import TableTokenizer
from minfer.core.tokenizer.token_decoder import TokenDecoder
from minfer.core.tokenizer.tokenizer_files import TokenizerFiles, read_json, well_formed


class JsonTokenizer(TableTokenizer):
    """Text is split by the package tokenizers; what a token stands for is worked out from the file's `decoder`.

    The package reads "<|im_end|>" in a user's text as that control token. So it is given a copy of the file in which
    each control token has a private spelling, drawn at random, which no text holds by chance or on purpose; where
    a control token is meant, `encode_segments` writes that spelling. What else control tokens do, such as ending the
    merges and the dummy prefixes beside them, stays the package's work.
    """

    def __init__(self, folder: Path) -> None:
        tokenizers = require("tokenizers", extra="hf", purpose="reading tokenizer.json")
        path = folder / "tokenizer.json"
        files, data = TokenizerFiles.from_folder(folder), read_json(path)
        with well_formed(path):
            vocabulary = _vocabulary(data["model"])
            tokens = _all_tokens(data, vocabulary, files)
            decoder = TokenDecoder(data.get("decoder"))
            self._private = _private_spellings(token.id for token in tokens if token.special)
            spelled = json.dumps(_respelled(data, tokens, self._private))
        try:
            self._library = tokenizers.Tokenizer.from_str(spelled)
        except Exception as error:  # the package raises nothing narrower
            raise TokenizerError(f"{path} is not what the package tokenizers reads: {error}") from error
        self._check_ids(tokens, vocabulary, path)
        ids = vocabulary | {token.text: token.id for token in tokens}
        prefix, suffix = files.frame(ids, *self._post_processor_frame(vocabulary))
        super().__init__(
            table=decoder.table(_spellings(ids)),
            special=(token for token in tokens if token.special),
            prefix=prefix,
            suffix=suffix,
            eos_token_ids=files.end_tokens(ids),
            head_size=files.head_size,
            chat_template=files.chat_template,
            names=files.named,
        )

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        """See `TableTokenizer.encode_segments`."""
        return self._encode("".join(s if isinstance(s, str) else self._private[s] for s in segments))

    def _encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        try:
            return self._library.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as error:  # a vocabulary without bytes and without an unknown token
            raise TokenizerError(f"tokenizer.json cannot encode this text: {error}") from error

    def _check_ids(self, tokens: Iterable[AddedToken], vocabulary: Mapping[str, int], path: Path) -> None:
        for token in tokens:
            found = vocabulary.get(token.text, self._library.token_to_id(self._private.get(token.id, token.text)))
            if found != token.id:
                raise TokenizerError(
                    f"{path}: the added token {token.text!r} has the id {token.id}, but by the vocabulary it is {found}"
                )

    def _post_processor_frame(self, words: Iterable[str]) -> tuple[list[int], list[int]]:
        """The ids that the file's post-processor puts in front of a text and behind it: seen on a short text."""
        for text in ("a", *words):
            try:
                plain, framed = self._encode(text), self._encode(text, add_special_tokens=True)
            except TokenizerError:
                continue
            for start in range(len(framed)) if plain else ():
                if framed[start : start + len(plain)] == plain:
                    return framed[:start], framed[start + len(plain) :]
        return [], []


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Spelling -> id. A Unigram model has a list of [spelling, score], the others a dict."""
    vocab = model["vocab"]
    if isinstance(vocab, list):
        return {spelling: i for i, (spelling, _) in enumerate(vocab)}
    return dict(vocab)


def _all_tokens(data: Mapping[str, Any], vocabulary: Mapping[str, int], files: TokenizerFiles) -> list[AddedToken]:
    """The added tokens of tokenizer.json, then those that only the files beside it know; in the order of their ids."""
    entries = data.get("added_tokens") or []
    tokens = {
        entry["id"]: AddedToken.from_entry(
            entry["id"], {**entry, "special": entry["special"] or entry["content"] in files.special}
        )
        for entry in entries
    }
    known = {token.text for token in tokens.values()}
    named = (AddedToken(vocabulary[text], text, special=True) for text in files.special if text in vocabulary)
    for token in (*files.added, *named):
        if token.text not in known:
            tokens.setdefault(token.id, token)
    return [tokens[i] for i in sorted(tokens)]


def _private_spellings(ids: Iterable[int]) -> dict[int, str]:
    """U+FDD0 and U+FDD1 are no characters, and no normaliser of text touches them or hexadecimal digits."""
    secret = secrets.token_hex(8)
    return {i: f"\ufdd0{secret}{i:x}\ufdd1" for i in ids}


def _respelled(data: Mapping[str, Any], tokens: Sequence[AddedToken], private: Mapping[int, str]) -> dict[str, Any]:
    """The file with `private` spellings of control tokens, and with nothing that cuts or pads a text."""
    renamed = {token.text: private[token.id] for token in tokens if token.special}
    normalized = {entry["content"]: entry["normalized"] for entry in data.get("added_tokens") or []}
    added = [
        {
            "id": token.id,
            "content": renamed.get(token.text, token.text),
            "special": token.special,
            "normalized": not token.special and normalized.get(token.text, True),
            "lstrip": token.lstrip,
            "rstrip": token.rstrip,
            "single_word": token.single_word,
        }
        for token in tokens
    ]
    return {
        **data,
        "model": _respelled_model(data["model"], tokens, renamed),
        "added_tokens": added,
        "truncation": None,
        "padding": None,
    }


def _respelled_model(
    model: Mapping[str, Any], tokens: Iterable[AddedToken], renamed: Mapping[str, str]
) -> dict[str, Any]:
    """The vocabulary with the new spellings, and without merges that would put an old one together from plain text.

    A spelling of one character stays beside the new one: text that holds this character has no other token for it.
    All added tokens are entered, so that the package does not number them by the size of the vocabulary.
    """
    vocab = model["vocab"]
    if isinstance(vocab, list):
        return {**model, "vocab": [[renamed.get(spelling, spelling), score] for spelling, score in vocab]}
    gone = {text for text in renamed if text in vocab and len(text) > 1}
    changed = dict(model, vocab={text: i for text, i in vocab.items() if text not in gone})
    changed["vocab"].update({renamed.get(token.text, token.text): token.id for token in tokens})
    if gone and "merges" in model:
        pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"])
        changed["merges"] = [[a, b] for a, b in pairs if gone.isdisjoint((a, b, a + b))]
    if model.get("unk_token") in gone:
        changed["unk_token"] = renamed[model["unk_token"]]
    return changed


def _spellings(ids: Mapping[str, int]) -> list[str | None]:
    spellings: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
    for spelling, i in ids.items():
        spellings[i] = spelling
    return spellings
