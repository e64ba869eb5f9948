"""TinyModel: one family's seeded weights, as numpy arrays, as a module in float64, and as a folder of files."""

import io
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from minfer.core.config import ModelConfig
from minfer.core.models import hollow, model_class
from minfer.course.lab.families import Sizes, family_facts
from minfer.course.lab.oracle import Array, Oracle

INDEX = "model.safetensors.index.json"


class TinyModel:
    """A model of one family. `weights` are float64 under the names, and in the layout, of a checkpoint file."""

    def __init__(self, name: str, facts: dict[str, Any], seed: int) -> None:
        self.name, self.facts, self.seed = name, facts, seed
        self.config = ModelConfig.from_dict(facts)
        self.context = self.config.context
        self._shapes = hollow(self.config)
        self.weights = {
            self._name_in_file(name): self._draw(name, tuple(parameter.shape))
            for name, parameter in self._shapes.named_parameters()
        }

    @cached_property
    def oracle(self) -> Oracle:
        """What this model must answer."""
        return Oracle(self.facts, self.weights)

    def module(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A fresh module with these weights."""
        module = model_class(self.config)(self.config).to(dtype)
        for name, parameter in module.named_parameters():
            stored = torch.from_numpy(self.weights[self._name_in_file(name)])
            parameter.data.copy_(stored.t() if module.stored_transposed(name) else stored)
        return module

    def save(
        self,
        folder: Path,
        *,
        dtype: torch.dtype = torch.float64,
        shards: int = 1,
        change: Mapping[str, Array | None] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a Hugging Face folder; `change` replaces, adds or (None) leaves out tensors, `facts` config keys."""
        tensors = {**self.weights, **(change or {})}
        kept = {n: torch.from_numpy(t).to(dtype).contiguous() for n, t in tensors.items() if t is not None}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**self.facts, **(facts or {})}))
        (folder / "tokenizer.model").write_bytes(letter_tokenizer())
        if shards == 1:
            save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
            return folder
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        where = {name: files[i % shards] for i, name in enumerate(sorted(kept))}
        for file in files:
            part = {name: kept[name] for name in kept if where[name] == file}
            save_file(part, folder / file, metadata={"format": "pt"})
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
        return folder

    def _name_in_file(self, name: str) -> str:
        return name if name == "lm_head.weight" else self._shapes.file_prefix + name

    def _draw(self, name: str, shape: tuple[int, ...]) -> Array:
        """Numbers of a size that keeps activations near 1, so that no part of the model is without effect."""
        normal = np.random.default_rng([self.seed, zlib.crc32(f"{self.name} {name}".encode())])
        values = normal.standard_normal(shape[::-1] if self._shapes.stored_transposed(name) else shape)
        if name.endswith("bias"):
            return 0.3 * values
        if len(shape) == 1:
            return 1 + 0.2 * values
        if "embed_tokens" in name or ".wpe" in name or ".wte" in name:
            return 0.3 * values
        return 1.5 * values / np.sqrt(shape[1])


@lru_cache(maxsize=64)
def tiny_model(name: str, seed: int, layers: int = 2) -> TinyModel:
    """The family's model of this seed; made once, since making it costs more than running it."""
    return TinyModel(name, family_facts(replace(Sizes.draw(seed), layers=layers))[name], seed)


@lru_cache(maxsize=1)
def letter_tokenizer(letters: Iterable[str] = "abcdefghijklmnopqrstuvwxyz") -> bytes:
    """A tokenizer.model with one piece per letter: small enough for any tiny vocabulary."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(letters)] * 3),
        model_writer=model,
        model_type="char",
        vocab_size=4 + len(tuple(letters)),
        minloglevel=2,
    )
    return model.getvalue()
