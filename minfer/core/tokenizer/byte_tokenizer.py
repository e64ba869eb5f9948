"""A tokenizer without files, for models of random weights: text is its UTF-8 bytes, one token each."""

from collections.abc import Sequence

from minfer.core.tokenizer.stream_decoder import TokenBytes
from minfer.core.tokenizer.table_tokenizer import TableTokenizer

BYTES = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ByteTokenizer(TableTokenizer):
    """Ids 0 … 255 are bytes; the others, which only the model gives out, decode to their number as "<1234>".

    There are no control tokens: nothing is added to a text, and nothing but its length ends an answer.
    """

    def __init__(self, vocab_size: int) -> None:
        pieces = [bytes([i]) if i < BYTES else f"<{i}>".encode() for i in range(max(vocab_size, BYTES))]
        super().__init__(
            table=TokenBytes(inside=pieces, opening=pieces, leading=0, errors="replace"),
            special=(),
            prefix=[],
            suffix=[],
            eos_token_ids=(),
            head_size=vocab_size,
            chat_template=CHAT_TEMPLATE,
            names={},
        )

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        """The bytes of the text; there are no control tokens among the segments."""
        return [byte for segment in segments for byte in str(segment).encode()]
