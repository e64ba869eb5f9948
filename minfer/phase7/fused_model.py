"""FusedModel: the model's forward, cut at each attention, so that one region between two of them serves all layers."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from minfer.core.attention import Attention
from minfer.core.device import Device
from minfer.core.gpt2 import GPT2
from minfer.core.model import Transformer
from minfer.phase7.blocks import FusedBlock, FusedGPT2Block
from minfer.phase7.decoding import Decoding, without_guards
from minfer.phase7.product import SUMMED, SummedProduct, head, product


def between(block: Any, following: Any, x: Tensor, attended: Tensor, rotary: Tensor | None) -> tuple[Tensor, ...]:
    """From a layer's attention to the next one's: x and `attended` of one -> x, q, k, v of the other."""
    x = block.leave(x, attended)
    return x, *following.enter(x, rotary)


def _nothing(block: nn.Module) -> None:
    """The default of `will_run` and `has_run`: weights are always where they are multiplied."""


class FusedModel(nn.Module):
    """A decoder with the forward of `Transformer` over fused blocks. `between` may be replaced by a compiled one.

    `will_run` and `has_run` are told of every block; they may be replaced by what fetches its weights.
    """

    def __init__(self, model: Transformer | GPT2, blocks: list[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.config = model.config
        self.layers = nn.ModuleList(blocks)
        self.norm = norm
        self.lm_head: nn.Module = model.lm_head
        self.between: Callable[..., tuple[Tensor, ...]] = between
        self.will_run: Callable[[nn.Module], None] = _nothing
        self.has_run: Callable[[nn.Module], None] = _nothing
        self.decoding: Decoding | None = None
        self.summed: list[Counter[tuple[str, int]]] = []  # counts of the layers that are summed for a lone row

    def embed(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Token ids and positions `(*lead,)` -> `(*lead, hidden)` and the rotary rows, where the model has them."""
        raise NotImplementedError

    def use_fast_products(self, device: Device) -> None:
        """Give every linear layer the form that is fastest on the device, in its dtype."""
        blocks: list[Any] = list(self.layers)
        for block in blocks:
            for name in block.linear:
                setattr(block, name, product(getattr(block, name), device))
        self.lm_head = head(self.lm_head, self.embedding)
        self.summed = [part.layer.ran for part in self.modules() if isinstance(part, SummedProduct)]

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding of tokens, which a head may be tied to."""
        raise NotImplementedError

    def forward(
        self, input_ids: Tensor, positions: Tensor, attention: Sequence[Attention], rows: Tensor | None = None
    ) -> Tensor:
        """As `Transformer.forward`; what follows the last attention is done for the wanted rows only."""
        x, rotary = self.embed(input_ids, positions)
        blocks: list[Any] = list(self.layers)
        self.will_run(blocks[0])
        q, k, v = blocks[0].enter(x, rotary)
        if self.decoding is not None and self.decoding.serves(attention[0]):
            x = self.decode(self.decoding, attention, x, q, k, v, rotary)
            return self.lm_head(self.norm(x if rows is None else x[rows]))
        one = self.decoding is not None and len(q) == 1  # a lone token without a cache is not worth a graph
        region = between if one else self.between
        for block, following, attend in zip(blocks, blocks[1:], attention, strict=False):
            attended = attend(q, k, v).flatten(-2)
            self.will_run(following)
            x, q, k, v = region(block, following, x, attended, rotary)
            self.has_run(block)
        attended = attention[len(blocks) - 1](q, k, v).flatten(-2)
        if rows is not None:
            x, attended = x.flatten(0, -2)[rows], attended.flatten(0, -2)[rows]
        x = blocks[-1].leave(x, attended)
        self.has_run(blocks[-1])
        return self.lm_head(self.norm(x))

    def decode(
        self, decoding: Decoding, attention: Sequence[Any], x: Tensor, q: Tensor, k: Tensor, v: Tensor, rotary: Any
    ) -> Tensor:
        """From the first layer's q, k and v to what leaves the last, `(B, hidden)`; heads are side by side on the way.

        All layers are alike, so Dynamo's guards are evaluated at the first one only: the graph that fits it fits all.
        The last layer stands in for its own successor, and nobody reads the q, k and v that it then computes: this
        superfluous product is cheaper than an uncompiled end, and spares a second graph.
        """
        blocks: list[Any] = list(self.layers)
        parts = (x, *(part.flatten(1) for part in (q, k, v)))
        run = region = decoding.region(len(x))
        for block, following, attend in zip(blocks, [*blocks[1:], blocks[-1]], attention, strict=True):
            self.will_run(following)
            parts = run(block, following, *parts, rotary, attend.decode_inputs())
            if run is region:
                run = without_guards(region)
            self.has_run(block)
        if len(x) == 1:
            for ran in self.summed:
                ran[SUMMED, 1] += 1
        return parts[0]


class FusedTransformer(FusedModel):
    """The Llama family."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model, [FusedBlock(block) for block in model.layers], model.norm)  # type: ignore[arg-type]
        self.embed_tokens, self.rotary = model.embed_tokens, model.rotary

    @property
    def embedding(self) -> nn.Embedding:
        """`embed_tokens`."""
        return self.embed_tokens

    def embed(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Embedding and rotary rows."""
        return self.embed_tokens(input_ids), self.rotary[positions]


class FusedGPT2(FusedModel):
    """GPT-2."""

    def __init__(self, model: GPT2) -> None:
        super().__init__(model, [FusedGPT2Block(block) for block in model.h], model.ln_f)  # type: ignore[arg-type]
        self.wte, self.wpe = model.wte, model.wpe

    @property
    def embedding(self) -> nn.Embedding:
        """`wte`."""
        return self.wte

    def embed(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        """Embedding of tokens and of positions."""
        return self.wte(input_ids) + self.wpe(positions), None


def fused(model: nn.Module) -> nn.Module:
    """The fused form of a `Transformer` or a `GPT2`, which is taken apart for it; any other model stays as it is."""
    if isinstance(model, GPT2):
        return FusedGPT2(model)
    return FusedTransformer(model) if isinstance(model, Transformer) else model
