"""Tokenizer: text to token ids and back, whatever kind of file defines it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minfer.core.errors import TokenizerError
from minfer.core.tokenizer.stream_decoder import StreamDecoder


class Tokenizer(ABC):
    """What the engine asks of a tokenizer.

    Ids are 0 … `vocab_size - 1`; the model's head may be wider. `bos_token_id` is the id that `encode` puts in front,
    None when the files say that none is added. `eos_token_ids` are all tokens that end a text: those of the tokenizer's
    files, then of generation_config.json, then of config.json. `special_ids` are the control tokens: decoding leaves
    them out, and text that spells one of them does not become it.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    special_ids: frozenset[int]

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`, no character of which is dropped by minfer.

        `add_special_tokens` puts BOS in front and EOS behind where the files say so, unless they are there already.
        `parse_special` reads text that spells a control token as that token. Raises `TokenizerError` for what is not
        a string of valid Unicode.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`, with no space tidied away. Bytes that are not UTF-8 become U+FFFD.

        Raises `TokenizerError` for what is no id.
        """

    @abstractmethod
    def decode_after(self, prompt_ids: Sequence[int], ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text that `ids` add after `prompt_ids`, which `stream_decoder` gives out piece by piece.

        With no prompt it is `decode(ids)`. An id that only the model's head has stands for nothing.
        """

    @abstractmethod
    def stream_decoder(self, prompt_ids: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for the tokens that follow `prompt_ids`; it leaves out control tokens."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for inside a text, control tokens too; perhaps not whole characters.

        Empty for an id that only the model's head has.
        """

    @abstractmethod
    def apply_chat_template(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a chat: `messages` are dicts with the strings `role` and `content`.

        The control tokens that the model's template writes are control tokens; those that a message spells stay text.
        BOS is there if the template writes it. Raises `TokenizerError` where there is no template or it fails.
        """


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a model folder: tokenizer.json if the package that reads it is installed, or tokenizer.model.

    Raises `TokenizerError` for absent or damaged files, `MissingExtra` where only tokenizer.json is there and the
    package tokenizers is not.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TokenizerError(f"{folder} is not a folder: a tokenizer is read from a model's folder")
    has_json, has_model = (folder / "tokenizer.json").exists(), (folder / "tokenizer.model").exists()
    if has_json and (find_spec("tokenizers") or not has_model):
        from minfer.core.tokenizer.json_tokenizer import JsonTokenizer

        return JsonTokenizer(folder)
    if has_model:
        from minfer.core.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

        return SentencePieceTokenizer(folder)
    raise TokenizerError(f"{folder} holds neither tokenizer.json nor tokenizer.model: no tokenizer to read")
