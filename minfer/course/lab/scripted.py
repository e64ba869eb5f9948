"""Scripted: a model whose every token is prescribed, and a tokenizer whose every piece is."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minfer.core.attention import Attention
from minfer.core.config import ModelConfig
from minfer.core.tokenizer.stream_decoder import TokenBytes
from minfer.core.tokenizer.table_tokenizer import TableTokenizer

SURE = 30.0
"""The logit of the prescribed token; all others have 0."""


class Scripted(nn.Module):
    """Says token `script[p]` after the token at position p, whatever that token is.

    It shows its attention zeros, as many as a real model would, so that a cache keeps count of them. `fail_at`: the
    position at which a forward raises, once.
    """

    def __init__(self, config: ModelConfig, script: Sequence[int], fail_at: int | None = None) -> None:
        super().__init__()
        self.config, self.fail_at = config, fail_at
        self.script = torch.tensor(script)
        self.size = nn.Parameter(torch.tensor(SURE, dtype=torch.float64))

    def forward(
        self, input_ids: Tensor, positions: Tensor, attention: Sequence[Attention], rows: Tensor | None = None
    ) -> Tensor:
        """As `Transformer.forward`."""
        if self.fail_at is not None and bool((positions == self.fail_at).any()):
            self.fail_at = None
            raise ArithmeticError("the scripted model fails here, once")
        config = self.config
        for attend in attention:
            q, k, v = (
                self.size.new_zeros(*input_ids.shape, heads, config.head_dim)
                for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            )
            attend(q, k, v)
        said = self.script[positions]
        if rows is not None:
            said = said.flatten()[rows]
        return torch.nn.functional.one_hot(said, config.vocab_size) * self.size


class Constant(nn.Module):
    """Says the same logits `(vocab,)` after every token."""

    def __init__(self, config: ModelConfig, logits: Tensor) -> None:
        super().__init__()
        self.config = config
        self.logits = nn.Parameter(logits.to(torch.float64))

    def forward(
        self, input_ids: Tensor, positions: Tensor, attention: Sequence[Attention], rows: Tensor | None = None
    ) -> Tensor:
        """As `Transformer.forward`."""
        lead = input_ids.shape if rows is None else rows.shape
        return self.logits.expand(*lead, -1).clone()


class Pieces(TableTokenizer):
    """Token i stands for `pieces[i]`, or for the letter of its number; text is not split, it is a list of ids."""

    def __init__(self, vocab_size: int, pieces: Mapping[int, bytes], eos_token_ids: Sequence[int]) -> None:
        table = [pieces.get(i, b" " + str(i).encode()) for i in range(vocab_size)]
        super().__init__(
            table=TokenBytes(table, table, leading=0, errors="replace"),
            special=(),
            prefix=[],
            suffix=[],
            eos_token_ids=eos_token_ids,
            head_size=vocab_size,
            chat_template=None,
            names={},
        )

    def encode_segments(self, segments: Sequence[Any]) -> list[int]:
        """Ids that are spelled in the text: "5 7" is [5, 7]."""
        return [int(word) for segment in segments for word in str(segment).split()]
