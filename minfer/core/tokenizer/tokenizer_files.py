"""What the JSON files beside a vocabulary say: the names of special tokens, end tokens, flags, the chat template."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError, TokenizerError
from minfer.core.tokenizer.special_tokens import AddedToken

GROUPS_OF_SPECIAL_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def read_bytes(path: Path) -> bytes:
    """The content of a file; a Git-LFS pointer in its place raises `TokenizerError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error
    if data.startswith(b"version https://git-lfs"):
        raise TokenizerError(f"{path} is a Git-LFS pointer, not the file itself: run `git lfs pull` in its folder")
    return data


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises `TokenizerError`."""
    try:
        data = json.loads(read_bytes(path))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise TokenizerError(f"{path} must hold a JSON object, not a {type(data).__name__}")
    return data


@contextmanager
def well_formed(where: Path) -> Iterator[None]:
    """Turn what a surprise in parsed JSON raises (an absent key, a list for a dict) into `TokenizerError`."""
    try:
        yield
    except MinferError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(f"{where} is not laid out as expected: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class TokenizerFiles:
    """The facts of the JSON files in a model's folder, any of which may be absent.

    `named` maps "bos_token", "eos_token", … to spellings (None where a file says null); `special` holds every spelling
    that a file calls special. `add_bos` and `add_eos` are None where no file says. Two flags are for SentencePiece: a
    model that is `legacy` puts its dummy prefix after each special token and not only in front of the text, and without
    `add_prefix_space` it puts it nowhere. `end_ids` are the end tokens of generation_config.json, then of config.json.
    `head_size` is the number of logits that the model has (0: unknown).
    """

    named: Mapping[str, str | None]
    special: frozenset[str]
    added: tuple[AddedToken, ...]
    add_bos: bool | None
    add_eos: bool | None
    legacy: bool
    add_prefix_space: bool
    end_ids: tuple[int, ...]
    head_size: int
    chat_template: str | None

    @classmethod
    def from_folder(cls, folder: Path) -> "TokenizerFiles":
        """Read what there is. A file that is damaged or makes no sense raises `TokenizerError`."""
        names = ("tokenizer_config", "special_tokens_map", "added_tokens", "generation_config", "config")
        paths = [folder / f"{name}.json" for name in names]
        config, token_map, older, generation, model = (read_json(path) if path.exists() else {} for path in paths)
        with well_formed(folder / "tokenizer_config.json"):
            merged = {**token_map, **config}
            named = {key: _spelling(value) for key, value in merged.items() if _is_name(key, value)}
            special = {text for text in named.values() if text}
            for key in GROUPS_OF_SPECIAL_TOKENS:
                group = merged.get(key) or ()
                spellings = map(_spelling, group.values() if isinstance(group, dict) else group)
                special.update(text for text in spellings if text)
            return cls(
                named=named,
                special=frozenset(special),
                added=_added_tokens(config, older, special),
                add_bos=config.get("add_bos_token"),
                add_eos=config.get("add_eos_token"),
                legacy=config.get("legacy") is not False,
                add_prefix_space=config.get("add_prefix_space") is not False,
                end_ids=(*_end_ids(generation, paths[3]), *_end_ids(model, paths[4])),
                head_size=model.get("vocab_size") or 0,
                chat_template=_chat_template(folder, config),
            )

    def id_of(self, name: str, ids: Mapping[str, int]) -> int | None:
        """The id of the token with this name ("bos_token", …), None if there is none.

        `ids` maps spellings to ids; a name for a spelling that has no id raises `TokenizerError`.
        """
        text = self.named.get(name)
        if not text:
            return None
        if text not in ids:
            raise TokenizerError(
                f"the {name} is {text!r}, which is not in the vocabulary: correct tokenizer_config.json"
            )
        return ids[text]

    def end_tokens(self, ids: Mapping[str, int]) -> list[int]:
        """All ids that end a text: the eos_token, then those of generation_config.json, then those of config.json."""
        eos = self.id_of("eos_token", ids)
        return [*([] if eos is None else [eos]), *self.end_ids]

    def frame(self, ids: Mapping[str, int], prefix: list[int], suffix: list[int]) -> tuple[list[int], list[int]]:
        """The ids around a text: as add_bos_token and add_eos_token say, else `prefix` and `suffix`."""
        for name, flag in (("bos_token", self.add_bos), ("eos_token", self.add_eos)):
            if flag is None:
                continue
            token_id = self.id_of(name, ids) if flag else None
            around = [] if token_id is None else [token_id]
            prefix, suffix = (around, suffix) if name == "bos_token" else (prefix, around)
        return prefix, suffix


def _is_name(key: str, value: object) -> bool:
    """Tells `"bos_token": …` from a flag that ends alike, such as `"add_bos_token": true`."""
    return key.endswith("_token") and (value is None or isinstance(value, str | dict))


def _spelling(value: Any) -> str | None:
    return value["content"] if isinstance(value, dict) else value


def _added_tokens(config: dict, older: dict, special: set[str]) -> tuple[AddedToken, ...]:
    """Those of `added_tokens_decoder`, and those that only the older added_tokens.json has, which knows no flags."""
    entries = {int(key): entry for key, entry in (config.get("added_tokens_decoder") or {}).items()}
    for text, token_id in older.items():
        entries.setdefault(token_id, {"content": text})
    return tuple(
        AddedToken.from_entry(token_id, {**entry, "special": entry.get("special") or entry["content"] in special})
        for token_id, entry in sorted(entries.items())
    )


def _end_ids(data: dict, path: Path) -> list[int]:
    value = data.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise TokenizerError(f"{path}: eos_token_id must be a token id or a list of token ids, not {value!r}")
    return ids


def _chat_template(folder: Path, config: dict) -> str | None:
    """chat_template.jinja, else that of tokenizer_config.json; of several there, the one named "default"."""
    if (folder / "chat_template.jinja").exists():
        return read_bytes(folder / "chat_template.jinja").decode("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        if "default" not in named:
            raise TokenizerError(
                f"{folder / 'tokenizer_config.json'}: none of its chat templates ({', '.join(named)}) is the default"
            )
        template = named["default"]
    if not isinstance(template, str | None):
        raise TypeError(f"chat_template is a {type(template).__name__}, not a string")
    return template
