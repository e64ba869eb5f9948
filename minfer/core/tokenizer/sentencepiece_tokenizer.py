"""tokenizer.model: a SentencePiece vocabulary (Llama 2, TinyLlama, Mistral, the embedded model)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from minfer.core.errors import TokenizerError
from minfer.core.tokenizer.sentencepiece_proto import with_control_pieces, without_dummy_prefix
from minfer.core.tokenizer.special_tokens import AddedToken, TokenSplitter
from minfer.core.tokenizer.stream_decoder import EACH_BYTE, TokenBytes
from minfer.core.tokenizer.table_tokenizer import TableTokenizer
from minfer.core.tokenizer.tokenizer_files import TokenizerFiles, read_bytes

SPACE = "▁"


class SentencePieceTokenizer(TableTokenizer):
    """Text is split by SentencePiece itself, between the added tokens of the JSON files beside it.

    SentencePiece puts a space in front of each text it is given (the dummy prefix). What follows an added token gets
    one only where the files call the model `legacy`.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.model"
        self._proto = read_bytes(path)
        try:
            self._processor = _load(self._proto)
        except RuntimeError as error:
            raise TokenizerError(f"{path} is not a SentencePiece model, or it is damaged: fetch it again") from error
        files = TokenizerFiles.from_folder(folder)
        files = replace(files, named={**self._own_names(), **files.named}, add_bos=files.add_bos is not False)
        tokens = self._all_tokens(files)
        self._adapt((token for token in tokens if token.special), files.add_prefix_space)
        self._words = TokenSplitter(token for token in tokens if not token.special)
        self._legacy = files.legacy
        ids = {token.text: token.id for token in tokens}
        prefix, suffix = files.frame(ids, [], [])
        super().__init__(
            table=self._token_bytes(tokens),
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
        pieces = [p for s in segments for p in (self._words.split(s) if isinstance(s, str) else [s])]
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            if isinstance(piece, int):
                ids.append(piece)
            elif piece:
                processor = self._processor if i == 0 or self._legacy else self._processor_without_prefix
                ids += processor.encode(piece)
        return ids

    @cached_property
    def _processor_without_prefix(self) -> SentencePieceProcessor:
        return _load(without_dummy_prefix(self._proto))

    def _adapt(self, special: Iterable[AddedToken], add_prefix_space: bool) -> None:
        """Change the model as the files beside it say: no text may be split into what only they call control tokens.

        A piece of one character stays: text that holds it has no other piece for it.
        """
        model, proto = self._processor, self._proto
        size = model.get_piece_size()
        ids = {token.id for token in special if token.id < size and len(token.text) > 1}
        ids = {i for i in ids if not (model.is_control(i) or model.is_unknown(i))}
        if ids:
            proto = with_control_pieces(proto, ids)
        if not add_prefix_space:
            proto = without_dummy_prefix(proto)
        if proto is not self._proto:
            self._proto, self._processor = proto, _load(proto)

    def _own_names(self) -> dict[str, str]:
        model = self._processor
        ids = {"unk_token": model.unk_id(), "bos_token": model.bos_id(), "eos_token": model.eos_id()}
        return {name: model.id_to_piece(i) for name, i in ids.items() if i >= 0}

    def _all_tokens(self, files: TokenizerFiles) -> list[AddedToken]:
        """The control tokens of the model, those that the files call special, and those that they add."""
        model = self._processor
        pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        tokens = {
            i: AddedToken(i, piece, special=True)
            for i, piece in enumerate(pieces)
            if model.is_control(i) or model.is_unknown(i) or piece in files.special
        }
        return list((tokens | {token.id: token for token in files.added}).values())

    def _token_bytes(self, tokens: Iterable[AddedToken]) -> TokenBytes:
        model = self._processor
        size = max([model.get_piece_size(), *(token.id + 1 for token in tokens)])
        inside, opening = [b""] * size, [b""] * size
        for i in range(model.get_piece_size()):
            piece = model.id_to_piece(i)
            if model.is_byte(i):
                inside[i] = opening[i] = bytes([int(piece[3:5], 16)])
            else:
                inside[i] = piece.replace(SPACE, " ").encode()
                opening[i] = piece.removeprefix(SPACE).replace(SPACE, " ").encode()
        leading = self._leading_spaces(i for i in range(size) if inside[i] != opening[i])
        for token in tokens:
            inside[token.id] = opening[token.id] = token.text.encode()
        return TokenBytes(inside, opening, leading, errors=EACH_BYTE)

    def _leading_spaces(self, spaced: Iterator[int]) -> float:
        """How many tokens at the start of a text lose a space. Asked of the model itself, since the settings that
        decide (add_dummy_prefix, remove_extra_whitespaces) are not to be had without the package protobuf."""
        model = self._processor
        first = next(spaced, None)
        if first is None or model.decode([first]).startswith(" "):
            return 0
        space = model.piece_to_id(SPACE)
        return math.inf if model.decode([space, space]) == "" else 1


def _load(model: bytes) -> SentencePieceProcessor:
    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor
