"""Chats to text: a model's own Jinja template, sandboxed, and masks for control tokens that messages spell."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

from minfer.core.errors import TokenizerError
from minfer.core.extras import require
from minfer.core.tokenizer.special_tokens import AddedToken

MASKS = range(0x1D800, 0x1DA00)
"""SignWriting symbols. Like the "<" of most control tokens they are visible, have no case and belong to no word, so
that a template's filters treat them alike."""


def check_messages(messages: Any) -> None:
    """Raise `TokenizerError` unless `messages` is a list of dicts that have a `role` and a `content`."""
    if not isinstance(messages, list | tuple):
        raise TokenizerError(f"messages must be a list of dicts, not a {type(messages).__name__}")
    if not messages:
        raise TokenizerError("messages is empty: a chat needs at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TokenizerError(f"messages[{i}] must be a dict with role and content, not a {type(message).__name__}")
        for key in ("role", "content"):
            if key not in message:
                raise TokenizerError(f"messages[{i}] has no {key!r}: its keys are {sorted(map(str, message))}")


class Disguise:
    """Keeps what a message spells from being taken for what the template writes.

    Wherever one of `tokens` begins in a message, its first character is masked: by a symbol that occurs nowhere in the
    messages. After the template has run, the control tokens that are spelled in full are the template's own; then the
    masks come off. A template sees each message at its right length, and as it is unless it spells a control token.
    """

    def __init__(self, tokens: Iterable[AddedToken], messages: Any) -> None:
        spellings = tuple(token.text for token in tokens)
        faces = sorted({text[0] for text in spellings})
        taken = set("".join(_strings(messages)))
        masks = list(islice((chr(code) for code in MASKS if chr(code) not in taken), len(faces)))
        if len(masks) < len(faces):
            raise TokenizerError("the messages use all SignWriting symbols, and minfer needs one that they do not use")
        self._mask = dict(zip(faces, masks, strict=True))
        self._unmask = str.maketrans(dict(zip(masks, faces, strict=True)))
        self._begins = _first_characters(spellings)

    def put_on(self, value: Any) -> Any:
        """`value` (strings, in lists and dicts) with every control token in it disguised."""
        if isinstance(value, str):
            return self._begins.sub(lambda match: self._mask[match[1]], value)
        if isinstance(value, Mapping):
            return {self.put_on(key): self.put_on(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.put_on(item) for item in value]
        return value

    def take_off(self, text: str) -> str:
        """The text as the messages had it."""
        return text.translate(self._unmask)


@lru_cache(maxsize=8)
def _first_characters(spellings: tuple[str, ...]) -> re.Pattern[str]:
    """Matches each character at which a spelling begins, also inside another one."""
    either = "|".join(map(re.escape, spellings)) or "(?!)"
    return re.compile(f"(?={either})(.)", re.DOTALL)


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


class ChatTemplate:
    """A model's template, with the functions that Hugging Face promises it, in Jinja's immutable sandbox.

    `names` are the variables of the special tokens: `bos_token`, `eos_token`, … (spellings).
    """

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        self._source, self._names = source, dict(names)

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        """The chat as text. Raises `TokenizerError` with what the template objects to, or with where it fails."""
        template = self._compiled
        try:
            return template.render(
                **self._names,
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
            )
        except TokenizerError:
            raise
        except Exception as error:  # a template is a program: it can raise anything
            raise TokenizerError(f"the chat template fails: {type(error).__name__}: {error}") from error

    @cached_property
    def _compiled(self) -> Any:
        jinja2 = require("jinja2", extra="hf", purpose="chat templates")
        sandbox = require("jinja2.sandbox", extra="hf", purpose="chat templates")
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_block()]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            return environment.from_string(self._source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"the chat template has a syntax error in line {error.lineno}: {error}") from error


def _refuse(message: str) -> None:
    raise TokenizerError(f"the chat template refuses these messages: {message}")


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Unlike Jinja's own filter: no HTML escapes, no sorted keys. `layout`: indent, separators, sort_keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _generation_block() -> type:
    """`{% generation %} … {% endgeneration %}` marks the assistant's words for training; here it only shows them."""
    nodes = require("jinja2.nodes", extra="hf", purpose="chat templates")
    extensions = require("jinja2.ext", extra="hf", purpose="chat templates")

    class GenerationBlock(extensions.Extension):  # type: ignore[name-defined]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return GenerationBlock
