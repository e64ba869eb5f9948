"""The tokenizer of `tiny`, and its documents as a stream of tokens to cut windows from."""

from __future__ import annotations

import json
import math
from pathlib import Path

import sentencepiece
import torch
from tiny_text import Document
from torch import Tensor

VOCABULARY = 4096
CONFIG = {
    "tokenizer_class": "LlamaTokenizer",
    "model_max_length": 512,
    "add_bos_token": True,
    "add_eos_token": False,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "clean_up_tokenization_spaces": False,
    "legacy": False,
}


def write_tokenizer(documents: list[Document], folder: Path) -> None:
    """Train the tokenizer on what is not held out; write tokenizer.model and tokenizer_config.json."""
    lines = [line for d in documents if not d.held_out for line in d.text.split("\n") if line]
    # Measured on the held-out text, bits per character of a bigram model: BPE 3072 2.090, BPE 4096 2.059,
    # unigram 3072 2.104, unigram 4096 2.072. No piece spans a line: a newline is the byte piece <0x0A>, as in Llama 2.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=VOCABULARY,
        character_coverage=1.0,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        max_sentence_length=100_000,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        num_threads=2,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")


def load_pieces(folder: Path) -> sentencepiece.SentencePieceProcessor:
    """The trained tokenizer."""
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


class TokenStream:
    """Documents as one row of token ids, `<s> ... </s> <s> ... </s>`, and windows cut from it.

    Invariant: a window begins with <s> and the beginning of a line, encoded as the tokenizer encodes the beginning of
    a prompt (with its space in front). So the model meets in training what it meets at a prompt's start.
    """

    def __init__(self, documents: list[Document], pieces: sentencepiece.SentencePieceProcessor) -> None:
        self.ids: list[int] = []
        self.openings: list[tuple[int, list[int]]] = []  # a line's place in ids, and its ids as a prompt's beginning
        newline = pieces.piece_to_id("<0x0A>")
        for document in documents:
            self.ids.append(pieces.bos_id())
            for number, line in enumerate(document.text.split("\n")):
                opening = pieces.encode(line)
                inside = opening if number == 0 else pieces.encode("\n" + line)[2:]  # after the space and the newline
                self.ids += [newline] if number else []
                if line:
                    self.openings.append((len(self.ids), len(inside), opening))
                self.ids += inside
            self.ids.append(pieces.eos_id())
        self.bos = pieces.bos_id()

    def window(self, opening: int, length: int) -> list[int]:
        """`length` ids from the given line on."""
        place, inside, first = self.openings[opening]
        return [self.bos, *first, *self.ids[place + inside : place + inside + length]][:length]

    def epoch(self, seed: int, length: int) -> Tensor:
        """Every token once or (where windows overlap by less than a line) twice, int64 (windows, length), shuffled."""
        generator = torch.Generator().manual_seed(seed)
        end = int(torch.randint(1, length, (1,), generator=generator))
        last_place = len(self.ids) - length
        windows, previous = [], -1
        for index, (place, _, _) in enumerate(self.openings):
            following = self.openings[index + 1][0] if index + 1 < len(self.openings) else math.inf
            if following > end and place <= last_place and index != previous:
                windows.append(self.window(index, length))
                previous, end = index, max(place + length - 2, following)
        order = torch.randperm(len(windows), generator=generator)
        return torch.tensor(windows)[order]

    def blocks(self, length: int) -> Tensor:
        """The whole stream in pieces of `length` + 1 ids that share one id: each id is predicted once; -1 pads."""
        starts = range(0, len(self.ids) - 1, length)
        rows = [self.ids[start : start + length + 1] for start in starts]
        rows[-1] = rows[-1] + [-1] * (length + 1 - len(rows[-1]))
        return torch.tensor(rows)
