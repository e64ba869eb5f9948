"""From the name of a model to what an engine needs of it: its checkpoint and its tokenizer."""

from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from minfer.core.checkpoint import Checkpoint
from minfer.core.checkpoint.shapes import RandomCheckpoint, is_random
from minfer.core.config import ModelConfig
from minfer.core.errors import CheckpointError
from minfer.core.gpt2 import GPT2
from minfer.core.hub import resolve
from minfer.core.model import Transformer
from minfer.core.tokenizer import Tokenizer, load_tokenizer


def model_class(config: ModelConfig) -> type[Transformer] | type[GPT2]:
    """The class that runs models of this architecture."""
    return GPT2 if config.architecture == "GPT2LMHeadModel" else Transformer


def open_model(model: str | Path) -> tuple[Checkpoint, Tokenizer]:
    """Checkpoint and tokenizer of "tiny", a folder, a pulled name or "random:<shape>". Raises `MinferError`."""
    if not isinstance(model, str | Path):
        raise CheckpointError(f"a model is a name or a folder, not {model!r}")
    if is_random(model):
        from minfer.core.tokenizer.byte_tokenizer import ByteTokenizer

        checkpoint = RandomCheckpoint(str(model))
        return checkpoint, ByteTokenizer(checkpoint.config.vocab_size)
    folder = resolve(model)
    return Checkpoint(folder), load_tokenizer(folder)


def skeleton(checkpoint: Checkpoint) -> Transformer | GPT2:
    """The checkpoint's model without memory for its weights: parameters have shapes only (device `meta`)."""
    return hollow(checkpoint.config)


def hollow(config: ModelConfig) -> Transformer | GPT2:
    """A model of `config` whose parameters have shapes only."""
    with torch.device("meta"), _WithoutInit():
        return model_class(config)(config)


class _WithoutInit(TorchFunctionMode):
    """Parameters stay as they are made: to "initialise" them on `meta`, torch would import seconds of its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))
