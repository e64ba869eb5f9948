"""`random:<shape>`: seeded random weights of a published shape, for sizes that nobody wants to download.

A `RandomCheckpoint` stands where a `Checkpoint` does, so every way of loading works with it. The values depend on the
seed and the parameter's name only, not on device or dtype: a block of at most `BLOCK` normal numbers is drawn on the
CPU for each tensor and repeated over it, which fills seven billion parameters in seconds and moves 4 MB per tensor.
"""

import hashlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from minfer.core.checkpoint.checkpoint import Checkpoint, LoadableModel
from minfer.core.checkpoint.tensor_source import TensorSource
from minfer.core.config import ModelConfig
from minfer.core.device import DTYPES
from minfer.core.errors import CheckpointError, did_you_mean
from minfer.core.hub import RANDOM
from minfer.core.hub.published import ALIASES, SHAPES

BLOCK = 1_048_573  # prime: rows of any usual length start at different places of the block
STD = 0.02


def is_random(model: object) -> bool:
    """Whether `model` asks for random weights: "random:llama2-7b"."""
    return isinstance(model, str) and model.startswith(RANDOM)


def random_config(model: str) -> ModelConfig:
    """The config that "random:<shape>" (or just the shape) names. Raises `CheckpointError` that lists the shapes."""
    shape = model.removeprefix(RANDOM)
    facts = SHAPES.get(ALIASES.get(shape, shape))
    if facts is None:
        hint = did_you_mean(shape, [*SHAPES, *ALIASES])
        raise CheckpointError(f"no shape {shape!r} for {RANDOM}<shape>{hint}. There are {', '.join(SHAPES)}")
    return ModelConfig.from_dict(facts)


@dataclass(frozen=True)
class RandomTensor(TensorSource):
    """One parameter made of `seed` and its name: normal with deviation 0.02, or ones if it is a norm's weight."""

    seed: int = 0

    def read_into(self, destination: Tensor) -> None:
        """Fill `destination`, a contiguous tensor of our shape, where it is and in its dtype."""
        self.check_shape(destination)
        with torch.no_grad():
            if len(self.shape) == 1 and self.name.endswith("weight"):
                destination.fill_(1.0)
                return
            block = self._block().to(destination.device, destination.dtype)
            for part in destination.view(-1).split(BLOCK):
                part.copy_(block[: part.numel()])

    @property
    def generator_seed(self) -> int:
        """What the tensor's own generator starts from: Python's `hash` would differ from process to process."""
        digest = hashlib.sha256(f"{self.seed} {self.name}".encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

    def _block(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.generator_seed)
        return torch.randn(min(prod(self.shape), BLOCK), generator=generator) * STD


class RandomCheckpoint(Checkpoint):
    """A checkpoint without files: the shape that "random:<shape>" names, and weights of `seed`."""

    def __init__(self, model: str, seed: int = 0) -> None:
        self.seed = seed
        self.folder, self.entries = Path(model), {}  # there is nothing to open
        self.config = random_config(model)
        from minfer.core.models import skeleton  # which imports us: it opens models of every kind

        self.sizes = {name: parameter.numel() for name, parameter in skeleton(self).named_parameters()}

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        return tuple(self.sizes)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model of this shape was published in."""
        return DTYPES[self.config.dtype or "float32"]

    @property
    def nbytes(self) -> int:
        """What its files would hold, in bytes."""
        return sum(self.sizes.values()) * self.dtype.itemsize

    def plan(self, model: LoadableModel) -> dict[str, TensorSource]:
        """A `RandomTensor` for each of the model's parameters."""
        return {
            name: RandomTensor(name, tuple(parameter.shape), self.dtype, self.seed)
            for name, parameter in model.named_parameters()
        }


def fill_random(model: nn.Module, seed: int = 0) -> None:
    """Give `model` the weights of `seed`, where its parameters are and in their dtype."""
    for name, parameter in model.named_parameters():
        RandomTensor(name, tuple(parameter.shape), parameter.dtype, seed).read_into(parameter.data)
