"""Prompts from a file: one a line, or JSON lines with parameters of their own; all are checked before any is run.

A line of a `.jsonl` file is an object with one of `prompt` (text), `messages` (a chat) and `prompt_ids` (token ids),
and any field of `SamplingParams`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError, RequestError, did_you_mean
from minfer.core.params import SamplingParams

PROMPT_KEYS = ("prompt", "messages", "prompt_ids")
PARAM_KEYS = tuple(field.name for field in fields(SamplingParams))


@dataclass(frozen=True)
class Request:
    """One line of the file; `prompt` is what an engine takes, `place` says where it stands."""

    place: str
    prompt: Any
    params: SamplingParams


def read_requests(path: Path, given: dict[str, Any], to_prompt: Callable[[str], Any]) -> list[Request]:
    """The requests of a file. Blank lines are left out.

    `given`: sampling parameters for the lines that do not set them; `to_prompt`: from a line's text to a prompt.
    Raises `RequestError` that names the file and the line.
    """
    parse = _parse_json if path.suffix.lower() == ".jsonl" else _parse_text
    requests = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                prompt, own = parse(line.removesuffix("\r"), to_prompt)
                requests.append(Request(place, prompt, SamplingParams(**{**given, **own})))
            except MinferError as error:
                raise RequestError(f"{place}: {error}") from error
    if not requests:
        raise RequestError(f"{path} holds no prompts: write one a line")
    return requests


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises `RequestError`."""
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error


def decode(data: bytes, name: str) -> str:
    """UTF-8 bytes as text, without a byte order mark. Raises `RequestError`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}") from error


def _parse_text(line: str, to_prompt: Callable[[str], Any]) -> tuple[Any, dict[str, Any]]:
    return to_prompt(line), {}


def _parse_json(line: str, to_prompt: Callable[[str], Any]) -> tuple[Any, dict[str, Any]]:
    """A line -> (prompt, sampling parameters)."""
    values = _read_object(line)
    for key in values:
        if key not in PROMPT_KEYS + PARAM_KEYS:
            known = PROMPT_KEYS + PARAM_KEYS
            raise RequestError(f"unknown key {key!r}{did_you_mean(key, known, 1)}; known are {', '.join(known)}")
    kinds = [key for key in PROMPT_KEYS if key in values]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise RequestError(f"give exactly one of {', '.join(PROMPT_KEYS)}, not {found}")
    prompt = _prompt(kinds[0], values.pop(kinds[0]), to_prompt)
    return prompt, {key: _bias(value) if key == "logit_bias" else value for key, value in values.items()}


def _read_object(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise RequestError('not a JSON object: write it like {"prompt": "Once upon a time"}')
    return values


def _prompt(kind: str, value: Any, to_prompt: Callable[[str], Any]) -> Any:
    item, noun = {
        "prompt": (str, "a string"),
        "messages": (dict, "a list of chat messages"),
        "prompt_ids": (int, "a list of token ids"),
    }[kind]
    items = [value] if kind == "prompt" else value
    if not isinstance(items, list) or not items or not all(type(each) is item for each in items):
        raise RequestError(f"{kind} is {json.dumps(value)}: it must be {noun}")
    return to_prompt(value) if kind == "prompt" else value


def _bias(value: Any) -> Any:
    """JSON has only strings for keys, token ids are numbers."""
    if not isinstance(value, dict):
        return value
    return {int(key) if key.isdecimal() and len(key) < 20 else key: bias for key, bias in value.items()}
