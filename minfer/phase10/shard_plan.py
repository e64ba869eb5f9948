"""ShardPlan: which slice of which parameter belongs to which rank.

    column-parallel   q, k, v, gate, up       a rank has some of the outputs: whole heads, or some of the inner channels
    row-parallel      o_proj, down_proj       a rank has the inputs that its own outputs are; the results are summed
    vocabulary        embedding and head      a rank has some rows, the same number on all: the last ones are padding
    pipeline          layers                  a stage has some of them; the first the embedding, the last norm and head

Everything else is small and on every rank (norms, biases of row-parallel layers, learned positions).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from minfer.core.config import ModelConfig
from minfer.core.errors import OptionsError
from minfer.core.stored_quantization import PARTS
from minfer.phase9 import find_scheme

GRANULES = (128, 64, 32)
"""Inner channels are dealt in such lots where that comes out even: groups of quantised columns stay whole."""

LAYER = re.compile(r"(layers|h)\.(\d+)\.")


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its part of each layer, and its stage of the layers. Rank 0 is the first of both."""

    part: int
    parts: int
    stage: int
    stages: int

    @classmethod
    def of(cls, rank: int, parts: int, stages: int) -> "Place":
        """Ranks of one stage are neighbours."""
        return cls(rank % parts, parts, rank // parts, stages)

    @property
    def rank(self) -> int:
        """Its number in the world."""
        return self.stage * self.parts + self.part

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.parts * self.stages

    @property
    def is_first(self) -> bool:
        """Whether tokens come in here."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether logits come out here."""
        return self.stage == self.stages - 1


class Part(NamedTuple):
    """A slice of a parameter: `ranges` of dimension `dim`, one behind the other, then zeros up to `size`.

    None for `dim`: all of the parameter.
    """

    dim: int | None
    ranges: Sequence[range] = ()
    size: int = 0

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The slice's shape, of a parameter of shape `whole`."""
        return tuple(self.size if dim == self.dim else length for dim, length in enumerate(whole))


class Communication(NamedTuple):
    """Bytes of activations that one rank's operations are on, in a step of N tokens of which R have logits:

    N · hidden       for each sum, of the embedding and two per layer; and from, and to, another stage
    R · hidden       for the last layer's two: what follows the last attention is done for these rows only
    R · vocabulary   for logits that are gathered, with padding, and for those that another stage gives to rank 0

    What rank 0 announces of the step, and rows that only fill up a graph, come on top.
    """

    per_token: int
    per_row: int

    def of(self, tokens: int, rows: int) -> int:
        """Of one step."""
        return tokens * self.per_token + rows * self.per_row


class ShardPlan:
    """The share of one rank in a model of `config`. Raises `OptionsError` where the model cannot be dealt out.

    `config` is then the shard's own: its heads, inner channels and layers; hidden size and vocabulary are the whole's.
    """

    def __init__(self, config: ModelConfig, place: Place) -> None:
        self.whole, self.place = config, place
        self.kv_heads, self.heads = deal_heads(config, place.part, place.parts)
        self.inner = deal(config.intermediate_size, place.part, place.parts, GRANULES)
        self.layers = deal(config.num_layers, place.stage, place.stages)
        self.rows = -(-config.vocab_size // place.parts)  # of the embedding and the head, padding included
        stored = config.quantization
        self.scheme = None if stored is None else find_scheme(stored.scheme, stored.group_size)
        self._refuse_too_many()
        self._refuse_cut_groups()
        self.config = replace(
            config,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
            num_layers=len(self.layers),
            windows=tuple(config.windows[layer] for layer in self.layers),
            tie_word_embeddings=config.tie_word_embeddings and place.stages == 1,
        )

    def _refuse_too_many(self) -> None:
        config, place = self.whole, self.place
        if place.stages > config.num_layers:
            raise OptionsError(
                f"pipeline_parallel = {place.stages}: the model has {config.num_layers} layers, and every stage needs "
                f"one: give at most {config.num_layers}"
            )
        if place.parts > min(config.intermediate_size, config.vocab_size):
            most = min(config.intermediate_size, config.vocab_size)
            raise OptionsError(f"tensor_parallel = {place.parts}: the model's narrowest layer has {most} channels")

    def _refuse_cut_groups(self) -> None:
        """Groups of columns that are stored with one scale stay whole."""
        size = 1 if self.scheme is None else max(map(self._columns, self.scheme.shapes(1, 1)))
        heads, whole = channels(self.heads, self.whole.head_dim), self.whole.num_heads * self.whole.head_dim
        for own, total in ((heads, whole), (self.inner, self.whole.intermediate_size)):
            cut = next((at for at in (own.start, own.stop) if at % size and at != total), None)
            if cut is not None:
                raise OptionsError(
                    f"tensor_parallel = {self.place.parts} cuts {total} columns at {cut}, within one of the groups of "
                    f"{size} that the model is stored in: give fewer ranks, or the original with quantization=…"
                )

    @property
    def vocabulary(self) -> range:
        """The token ids whose rows this rank has; those of padding belong to no token."""
        first = self.place.part * self.rows
        return range(first, max(first, min(first + self.rows, self.whole.vocab_size)))

    @property
    def head_rows(self) -> int:
        """Of the head, those that this rank multiplies with, padding included; 0 where the head is on another stage."""
        return self.rows if self.place.is_last else 0

    def communication(self, itemsize: int) -> Communication:
        """What this rank says and hears of a step, in activations of `itemsize` bytes."""
        place, hidden, vocabulary = self.place, self.whole.hidden_size, self.whole.vocab_size
        last_sums = 2 if place.parts > 1 and place.is_last else 0
        sums = 2 * len(self.layers) + place.is_first - last_sums if place.parts > 1 else 0
        stages_beside = (not place.is_first) + (not place.is_last)
        gathered = self.rows * place.parts if place.parts > 1 and place.is_last else 0
        gives_logits = place.stages > 1 and (place.rank == 0 or (place.is_last and place.part == 0))
        per_row = hidden * last_sums + gathered + (vocabulary if gives_logits else 0)
        return Communication(itemsize * hidden * (sums + stages_beside), itemsize * per_row)

    def name_in_whole(self, name: str) -> str:
        """The whole model's name of a parameter of the shard: layers are numbered from 0 on every stage."""
        name = re.sub(r"\.(linear|quantized)\.", ".", name)
        if name == "lm_head.weight" and self.whole.tie_word_embeddings:
            return "wte.weight" if self.whole.architecture == "GPT2LMHeadModel" else "embed_tokens.weight"
        return LAYER.sub(lambda found: f"{found[1]}.{self.layers[int(found[2])]}.", name)

    def part(self, name: str) -> Part:
        """Which slice of the whole model's parameter `name` is this rank's."""
        *path, layer, kind = name.split(".")
        dim = 1 if layer in ("o_proj", "down_proj") or (layer == "c_proj" and path) else 0
        if dim == 1 and kind == "bias":
            return Part(None)  # added once, to the sum
        ranges = self._ranges(layer, path[-1] if path else "")
        if dim == 1 and kind in PARTS:
            ranges = self._entries(kind, ranges)
        if not ranges:
            return Part(None)
        padded = self.rows if layer in ("embed_tokens", "wte", "lm_head") else sum(map(len, ranges))
        return Part(dim, ranges, padded)

    def _entries(self, kind: str, columns: Sequence[range]) -> list[range]:
        """Where these columns are in the part `kind` of a weight that is stored quantised."""
        each = self._columns(kind)
        return [range(some.start // each, -(-some.stop // each)) for some in columns if each]

    def _columns(self, kind: str) -> int:
        """How many columns share an entry of the part `kind`: two a byte of codes, a group a scale; 0 means all."""
        assert self.scheme is not None
        shape, _ = self.scheme.shapes(1, GRANULES[0])[kind]
        return GRANULES[0] // shape[1] if len(shape) > 1 else 0

    def _ranges(self, layer: str, owner: str) -> list[range]:
        """The channels of a layer that are this rank's; none if it is on all ranks as a whole."""
        heads, kv_heads = (channels(some, self.whole.head_dim) for some in (self.heads, self.kv_heads))
        third = self.whole.num_heads * self.whole.head_dim
        by_layer = {
            "q_proj": [heads],
            "k_proj": [kv_heads],
            "v_proj": [kv_heads],
            "o_proj": [heads],
            "c_attn": [range(heads.start + i * third, heads.stop + i * third) for i in range(3)],
            "c_proj": [heads if owner == "attn" else self.inner],
        }
        by_layer |= {name: [self.inner] for name in ("gate_proj", "up_proj", "down_proj", "c_fc")}
        by_layer |= {name: [self.vocabulary] for name in ("embed_tokens", "wte", "lm_head")}
        return by_layer.get(layer, [])


def deal(total: int, index: int, count: int, lots: Sequence[int] = ()) -> range:
    """The share `index` of `count` in `total` things, as even as can be; in lots of the first size that comes out."""
    lot = next((lot for lot in lots if total % lot == 0 and total // lot >= count), 1)
    total //= lot
    return range(lot * (index * total // count), lot * ((index + 1) * total // count))


def deal_heads(config: ModelConfig, part: int, parts: int) -> tuple[range, range]:
    """The key/value heads and the query heads of one rank; a query head is where its key/value head is.

    With fewer key/value heads than ranks, each is on as many ranks, which share its query heads. Raises `OptionsError`.
    """
    heads, kv_heads = config.num_heads, config.num_kv_heads
    group = heads // kv_heads
    if kv_heads >= parts:
        own = deal(kv_heads, part, parts)
        return own, range(own.start * group, own.stop * group)
    copies = parts // kv_heads
    if parts % kv_heads or group < copies:
        raise OptionsError(
            f"tensor_parallel = {parts}: the model has {heads} query and {kv_heads} key/value heads, which cannot be "
            f"dealt to {parts} ranks: give at most {kv_heads}, or a multiple of it that is at most {heads}"
        )
    own = range(part // copies, part // copies + 1)
    queries = deal(group, part % copies, copies)
    return own, range(own.start * group + queries.start, own.start * group + queries.stop)


def channels(heads: range, head_dim: int) -> range:
    """The channels of consecutive heads."""
    return range(heads.start * head_dim, heads.stop * head_dim)
