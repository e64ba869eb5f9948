"""Small changes to a SentencePiece model, made in its serialised form: the package itself offers none.

A `tokenizer.model` is a protobuf message, `ModelProto` of sentencepiece_model.proto: field 1, repeated, is a piece
(string, score, type) and field 3 the `NormalizerSpec`. Two rules of the encoding (protobuf.dev, "Encoding") do the
work: a message is a row of (key, value) pairs, a message as value being (key, length, bytes); and of a field that
occurs twice the later one counts, field by field.
"""

from collections.abc import Collection

PIECE_KEY = 1 << 3 | 2
NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"  # field 3 { field 3, add_dummy_prefix: false }
CONTROL = b"\x18\x03"  # field 3, type: CONTROL


def without_dummy_prefix(model: bytes) -> bytes:
    """The model that puts no space in front of a text."""
    return model + NO_DUMMY_PREFIX


def with_control_pieces(model: bytes, ids: Collection[int]) -> bytes:
    """The model in which the pieces `ids` are control symbols, which no text is ever split into.

    `model` must be one that SentencePiece has read.
    """
    changed = bytearray()
    position = piece = 0
    while position < len(model):
        key, start = _read_varint(model, position)
        assert key & 7 == 2, "all fields of a ModelProto are messages"
        length, start = _read_varint(model, start)
        position = start + length
        value = model[start:position]
        if key == PIECE_KEY:
            value += CONTROL if piece in ids else b""
            piece += 1
        changed += _varint(key) + _varint(len(value)) + value
    return bytes(changed)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """(the number at `position`, where it ends): seven bits a byte, the lowest first; the top bit says "more"."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
