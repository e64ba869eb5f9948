"""Shard: one rank's part of a model, built on its device from its slices of the files alone."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from minfer.core.checkpoint import Checkpoint, StoredTensor, TensorSource
from minfer.core.gpt2 import GPT2
from minfer.core.models import hollow, skeleton
from minfer.core.stored_quantization import PARTS, StoredQuantization
from minfer.phase9 import QuantizedLinear, exchange_hollow, find_scheme
from minfer.phase10.parallel_layers import (
    FromPreviousStage,
    NoPositions,
    RowParallel,
    ToNextStage,
    VocabularyEmbedding,
    VocabularyHead,
)
from minfer.phase10.ranks import Ranks
from minfer.phase10.shard_plan import Part, ShardPlan

Home = Callable[[str], torch.device]
"""From a parameter's name in the shard to the device that it is to lie on."""


class Names(NamedTuple):
    """What the parts of a model are called that a shard exchanges."""

    blocks: str
    embedding: str
    norm: str
    row_parallel: tuple[str, str]  # within a block


LLAMA = Names("layers", "embed_tokens", "norm", ("self_attn.o_proj", "mlp.down_proj"))
GPT_2 = Names("h", "wte", "ln_f", ("attn.c_proj", "mlp.c_proj"))


def build_shard(checkpoint: Checkpoint, plan: ShardPlan, ranks: Ranks, dtype: torch.dtype, home: Home) -> Any:
    """This rank's module; `bytes_read` of it says what it took of the files. Raises `CheckpointError`."""
    whole, model = skeleton(checkpoint), cast(Any, hollow(plan.config))
    exchange(model, plan, ranks)
    if checkpoint.config.quantization is not None:
        exchange_hollow(whole, checkpoint.config.quantization)
        exchange_quantized(model, checkpoint.config.quantization)
    sources = checkpoint.plan(whole)
    model.bytes_read = 0
    for name, _ in list(model.named_parameters()):
        if is_empty(model, name):
            set_parameter(model, name, torch.empty(0, plan.config.hidden_size, dtype=dtype, device=home(name)))
            continue
        in_whole = plan.name_in_whole(name)
        source, part = sources[in_whole], plan.part(in_whole)
        as_stored = name.rpartition(".")[2] in PARTS
        set_parameter(model, name, read_part(source, part, source.dtype if as_stored else dtype, home(name)))
        model.bytes_read += part_bytes(source, part)
        ranks.say("read")
    model.tie()
    model.make_tables()
    return model


def exchange(model: Any, plan: ShardPlan, ranks: Ranks) -> None:
    """Put the parallel layers into a hollow model of the shard's config."""
    names, place, width = GPT_2 if isinstance(model, GPT2) else LLAMA, plan.place, plan.config.hidden_size
    with torch.device("meta"):
        if place.parts > 1:
            for block in getattr(model, names.blocks):
                for path in names.row_parallel:
                    owner, _, leaf = path.partition(".")
                    setattr(getattr(block, owner), leaf, RowParallel(block.get_submodule(path), ranks.tensor))
            first, tokens = place.part * plan.rows, plan.config.vocab_size
            setattr(model, names.embedding, VocabularyEmbedding(plan.rows, width, first, ranks.tensor))
            model.lm_head = VocabularyHead(plan.rows, width, tokens, ranks.tensor)
        if not place.is_first:
            setattr(model, names.embedding, FromPreviousStage(width, ranks.world, place.rank - place.parts))
            if isinstance(model, GPT2):
                model.wpe = NoPositions()  # type: ignore[assignment]
        if not place.is_last:
            setattr(model, names.norm, nn.Identity())
            model.lm_head = ToNextStage(ranks.world, place.rank + place.parts)
    model.tie()


def exchange_quantized(model: Any, stored: StoredQuantization) -> None:
    """Exchange the layers of a hollow shard that are stored quantised: linear ones, and a head that ranks share."""
    exchange_hollow(model, stored)
    head = model.lm_head
    if stored.quantize_head and isinstance(head, VocabularyHead):
        assert head.weight is not None
        rows, width = head.weight.shape
        with torch.device("meta"):
            head.quantize(QuantizedLinear(width, rows, find_scheme(stored.scheme, stored.group_size)))


def is_empty(model: nn.Module, name: str) -> bool:
    """Whether the parameter has no rows here: the embedding, on any stage but the first."""
    return isinstance(model.get_submodule(name.rpartition(".")[0]), FromPreviousStage)


def set_parameter(model: nn.Module, name: str, weight: Tensor) -> None:
    """Put `weight` where `model` has only the shape of the parameter `name`, and tell its layer the new sizes."""
    path, _, leaf = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    setattr(owner, leaf, nn.Parameter(weight, requires_grad=False))
    if isinstance(owner, nn.Linear) and leaf == "weight":
        owner.out_features, owner.in_features = weight.shape


def read_part(source: TensorSource, part: Part, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A part of one stored parameter; of a file only the pages of the part are touched."""
    if part.dim is None:
        return source.read(dtype, device)
    made = torch.zeros(part.shape(source.shape), dtype=dtype, device=device)
    if isinstance(source, StoredTensor):
        with source.mapped() as values:
            fill(made, values, part)
    else:
        fill(made, source.read(dtype, device), part)
    return made


def fill(made: Tensor, values: Tensor, part: Part) -> None:
    """Copy the ranges of `values`, one behind the other, to the beginning of `made`."""
    assert part.dim is not None
    start = 0
    for some in part.ranges:
        made.narrow(part.dim, start, len(some)).copy_(values.narrow(part.dim, some.start, len(some)))
        start += len(some)


def part_bytes(source: TensorSource, part: Part) -> int:
    """Bytes of the part as they are stored."""
    if part.dim is None:
        return source.nbytes
    return source.nbytes // source.shape[part.dim] * sum(map(len, part.ranges))
