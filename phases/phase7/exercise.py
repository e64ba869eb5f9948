"""Phase 7, Fusion: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 30 points. One product for several: merged, take
Task 2, 25 points. Cut at attention: FusedBlock.enter, FusedBlock.leave, FusedModel.forward
Task 3, 25 points. Few graphs: Compilation.compiled
Task 4, 20 points. Ready before the first request: Engine.prepare_model, Engine.allocate, Engine.warmup

Copy it (`minfer start 7`), write, then look what is right: `minfer check 7`, or
`pytest tests/phase7 --engine work/phase7.py`. Hints: `minfer hint 7 1`.
It builds on the reference of phase 6; to build on your own, import that instead.
"""

import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from phase7_given import (
    AUTO,
    EAGER,
    INDUCTOR,
    INSTALL,
    SUMMED,
    WARMUP_BLOCKS,
    WARMUP_TOKENS,
    WORTHWHILE,
    Decoding,
    FusionOptions,
    SummedProduct,
    _frozen,
    _nothing,
    _only,
    alike,
    between,
    head,
    product,
    without_guards,
)
from torch import Tensor, nn

from minfer.core.attention import Attention
from minfer.core.device import Device
from minfer.core.errors import MinferWarning, OptionsError
from minfer.core.gpt2 import GPT2, GPT2Block
from minfer.core.model import Block, Transformer
from minfer.core.rope import rotate
from minfer.phase6 import Engine as Phase6Engine
from minfer.phase6 import PagedKVCache, PagedStep

# ==== phase7/merge.py ===============================================================================================
# Merging linear layers that read the same input: one product in place of several, with the very same weights.


def take(owner: nn.Module, name: str) -> nn.Module:
    """Remove the submodule `name` from `owner` and return it: what was merged must not be held a second time."""
    raise NotImplementedError("P7 task 1: take")


def merged(layers: list[Any]) -> nn.Module:
    """One layer whose output channels are those of `layers`, in their order.

    `layers`: `nn.Linear`, or quantised layers of one scheme, of one width in; all with a bias, or none. Scales are per
    output channel, so a quantised layer keeps its codes bit by bit.
    """
    raise NotImplementedError("P7 task 1: merged")


# ==== phase7/blocks.py ==============================================================================================
# Fused blocks: a layer cut where attention is, each half with as few products as it can have.
#
#     enter   x -> q, k, v                     norm, one product for q, k and v, rotary
#     leave   x, attended -> x                 output product, norm, one product for gate and up, down product
#
# What lies between two attentions is `leave` of a layer and `enter` of the next: that is the region that is compiled.


class FusedBlock(nn.Module):
    """A layer of the Llama family with two merged products. Takes its parts out of `block`."""

    linear = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")

    def __init__(self, block: Block) -> None:
        super().__init__()
        attention, mlp = block.self_attn, block.mlp
        self.head_dim = attention.head_dim
        parts = [cast(Any, take(attention, name)) for name in ("q_proj", "k_proj", "v_proj")]
        self.widths = [part.out_features for part in parts]
        self.kv_heads = self.widths[1] // self.head_dim
        self.group = self.widths[0] // self.widths[1]  # query heads of one key and value head
        self.input_layernorm = block.input_layernorm
        self.qkv_proj = merged(parts)
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        self.o_proj = take(attention, "o_proj")
        self.post_attention_layernorm = block.post_attention_layernorm
        self.gate_up_proj = merged([take(mlp, "gate_proj"), take(mlp, "up_proj")])
        self.down_proj = take(mlp, "down_proj")
        self.activation = mlp.activation

    def enter(self, x: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `(*lead, hidden)`, rotary `(*lead, 2, head_dim)` -> rotated q and k, and v, as attention takes them."""
        raise NotImplementedError("P7 task 2: FusedBlock.enter")

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """x `(*lead, hidden)` and what attention gave, `(*lead, heads · head_dim)` -> `(*lead, hidden)`."""
        raise NotImplementedError("P7 task 2: FusedBlock.leave")


class FusedGPT2Block(nn.Module):
    """A layer of GPT-2, whose q, k and v are one product already. Takes its parts out of `block`."""

    linear = ("c_attn", "o_proj", "c_fc", "c_proj")

    def __init__(self, block: GPT2Block) -> None:
        super().__init__()
        self.head_dim = block.attn.head_dim
        self.ln_1, self.ln_2 = block.ln_1, block.ln_2
        self.c_attn = take(block.attn, "c_attn")
        self.kv_heads, self.group = self.c_attn.out_features // 3 // self.head_dim, 1  # type: ignore[operator]
        self.o_proj = take(block.attn, "c_proj")
        self.c_fc = take(block.mlp, "c_fc")
        self.c_proj = take(block.mlp, "c_proj")
        self.activation = block.mlp.activation

    def enter(self, x: Tensor, rotary: None) -> tuple[Tensor, Tensor, Tensor]:
        """x `(*lead, hidden)` -> q, k, v; positions were added to the embedding."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        return q, k, v

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """x `(*lead, hidden)` and what attention gave, `(*lead, heads · head_dim)` -> `(*lead, hidden)`."""
        x = x + self.o_proj(attended)
        return x + self.c_proj(self.activation(self.c_fc(self.ln_2(x))))


# ==== phase7/compilation.py =========================================================================================
# Compilation: what `torch.compile` makes of the region between two attentions, counted, and why it could not.


class Compilation:
    """One `torch.compile` backend at work. `graphs` counts the graphs that it compiled: few, whatever the lengths.

    `problem`: why nothing is compiled; empty if it is. Raises `OptionsError` for an unknown backend.
    """

    def __init__(self, backend: str, parameters: int) -> None:
        self.graphs = 0
        self.problem = "as asked" if backend == EAGER else ""
        if backend == AUTO:
            backend = "inductor"
            if parameters < WORTHWHILE:
                self.problem = f"{parameters:,} parameters are too few to be worth the seconds"
        if not self.problem:
            from torch._dynamo.exc import InvalidBackend  # half of a cold start, so only where something is compiled

            try:
                self.make = torch._dynamo.lookup_backend(backend)
            except InvalidBackend as error:
                known = ", ".join([AUTO, EAGER, "eager", *torch.compiler.list_backends()])
                raise OptionsError(f"compiler {backend!r} is unknown: use one of {known}") from error
        self.backend = backend

    def compiled(self, function: Any, guarded_by: str = "") -> Callable[..., Any]:
        """`function` compiled whole, with every size of its tensors a variable; as it is where that does not work.

        It gets a code object of its own, since Dynamo keeps graphs, and counts them against its limit, per code object.
        `guarded_by` names the one argument whose dtype and device Dynamo still checks at each call. The caller promises
        that nothing else differs from the first call but sizes above 1. Checking every part of a model each time would
        take longer than a small region itself.
        """
        raise NotImplementedError("P7 task 3: Compilation.compiled")

    def _counted(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        if self.backend != "inductor":
            return self.make(graph, inputs)
        from torch._inductor import config as inductor

        with inductor.patch(INDUCTOR):
            return self.make(graph, inputs)

    def attempt(self, run: Callable[[], None], device: Device) -> None:
        """Run what compiles. Without a compiler: warn, and set `problem`. An error of the region itself raises.

        Meanwhile Dynamo takes floats, such as a norm's epsilon, for constants, and two sizes for two variables even if
        they happen to be equal.
        """
        from torch._dynamo.exc import BackendCompilerFailed
        from torch.fx.experimental import _config

        try:
            shapes: Any = _config  # which a type checker does not see to be a config
            with torch._dynamo.config.patch(specialize_float=True), shapes.patch(use_duck_shape=False):
                run()
        except BackendCompilerFailed as error:
            self.problem = str(error).splitlines()[0]
            cure = f"{INSTALL[device.torch_device.type]}, or load with compiler=none"
            warnings.warn(f"phase 7 runs fused but not compiled: {self.problem}; {cure}", MinferWarning, stacklevel=2)

    def __str__(self) -> str:
        return f"not compiled: {self.problem}" if self.problem else f"{self.backend}, {self.graphs} graphs"


# ==== phase7/fused_model.py =========================================================================================
# FusedModel: the model's forward, cut at each attention, so that one region between two of them serves all layers.


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
        raise NotImplementedError("P7 task 2: FusedModel.forward")

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


# ==== phase7/engine.py ==============================================================================================
# Phase 7's change: `prepare_model` merges products and compiles what lies between two attentions.


class Engine(Phase6Engine):
    """Phase 6's layers, merged; and what lies between two attentions as one compiled region."""

    Options = FusionOptions
    options: FusionOptions

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Merge, then quantise as asked (scales are per output channel: the codes are the same), then compile."""
        raise NotImplementedError("P7 task 4: Engine.prepare_model")

    def compile(self, model: FusedModel) -> None:
        """Have the model's regions compiled when they first run.

        Every device gets the region between two attentions. A CPU whose layers are all alike also gets `Decoding`: the
        same region with a decode step's attention in it. A card needs no such region: it has kernels for attention, and
        phase 8's graphs save the launches around them.
        """
        if self.compilation.problem:
            return
        if alike(model.layers) and self.device.torch_device.type == "cpu":
            model.decoding = Decoding(partial(self.compilation.compiled, guarded_by="x"))
        model.between = self.compilation.compiled(between)

    def allocate(self) -> None:
        """As before; and compile now, so that no request waits for it."""
        raise NotImplementedError("P7 task 4: Engine.allocate")

    @torch.inference_mode()
    def warmup(self) -> None:
        """Run the model on each kind of size that the compiler knows; no request and no request's cache is touched."""
        raise NotImplementedError("P7 task 4: Engine.warmup")

    def decode_rows(self, input_ids: Tensor) -> None:
        """A decode step of first tokens `(B,)`, over a pool of its own."""
        cache = PagedKVCache(self.cache.config, WARMUP_BLOCKS, self.cache.block_size, self.dtype, input_ids.device)
        positions = torch.zeros_like(input_ids)
        tables = positions.unsqueeze(1).expand(-1, WARMUP_BLOCKS).contiguous()
        masks = cache.decode_masks(positions, WARMUP_BLOCKS * cache.block_size)
        cache.step = PagedStep(positions, tables, masks, [])
        self.model(input_ids, positions, cache.layers)
