"""PartClock: what the parts of an engine's forwards take by the host's clock, in the very steps that are counted.

    layers       products of the layers' weights
    head         the product that makes logits
    attention    storing keys and values, and attending
    gather       collecting a paged cache's blocks, which attention then reads
    others       what layers, embeddings and the last norm take beside those: all other operators, and calling them
    communication   in operations between ranks, waiting for other ranks included

Each second is counted once: waiting for other ranks is communication only, and gathering is not attention too.
To be timed costs a call about a microsecond. Compiled regions stay as they are: attention that is compiled into one has
no call to be timed, and is among the others.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from minfer.bench.linear_layers import called_layers
from minfer.core.attention import CausalAttention
from minfer.phase7.fused_model import FusedModel
from minfer.phase7.product import PRODUCTS, Product

PARTS = ("layers", "head", "attention", "gather", "others", "communication")


class PartClock:
    """While it is entered, `seconds` by part grow with every forward of `engine`, which is afterwards as it was."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.device = engine, engine.device
        ranks = getattr(engine, "ranks", None)
        self.groups = ranks.groups if ranks else ()
        self.now: Callable[[], float] = self.done if self.device.works_beside_host else self.device.clock
        self.own = dict.fromkeys(PARTS[:-1], 0.0)
        self.claimed = 0.0  # the sum of `own`
        self.undo = ExitStack()

    @property
    def seconds(self) -> dict[str, float]:
        """By part, since it was made; communication: since the ranks were."""
        return {**self.own, "communication": self.waited()}

    def waited(self) -> float:
        """Seconds that this rank has spent in operations between ranks."""
        return sum(group.seconds for group in self.groups)

    def __enter__(self) -> "PartClock":
        head = getattr(self.engine.model, "lm_head", None)
        self.time_products(head)
        if isinstance(head, nn.Module):
            self.time(head, "forward", "head")
        cache = getattr(self.engine, "cache", None)
        attention = type(cache.layers[0]) if cache is not None else CausalAttention
        self.time(attention, "__call__", "attention")
        if hasattr(attention, "gather"):
            self.time(attention, "gather", "gather")
        self.time_others()
        return self

    def __exit__(self, *_: object) -> None:
        self.undo.close()

    def time_products(self, head: nn.Module | None) -> None:
        """Products of the layers; in a compiled region, what stands behind the operator that it calls."""
        within: set[nn.Module] = set(head.modules()) if head is not None else set()
        for part in self.engine.model.modules():
            if isinstance(part, Product) and part not in within:
                within |= set(part.modules())
                part.multiply = PRODUCTS[int(part.handle)] = self.timed("layers", part.multiply)
                self.undo.callback(part.exchange, part.layer)
        for part in called_layers(self.engine):
            if part not in within:
                self.time(part, "forward", "layers")

    def time_others(self) -> None:
        """Layers, or what runs in their place once they are fused; embeddings, and the last norm."""
        model = self.engine.model
        fused = isinstance(model, FusedModel)
        if fused:
            self.time(model, "between", "others")
            self.time(model, "decode", "others")
        for part in model.children():
            if not isinstance(part, nn.ModuleList):
                self.time(part, "forward", "others")
            elif not fused:
                for layer in part:
                    self.time(layer, "forward", "others")

    def time(self, owner: Any, name: str, part: str) -> None:
        """Let a method of a class, an object or a module, by its name, be of that part."""
        if name in vars(owner):
            self.undo.callback(setattr, owner, name, vars(owner)[name])
        else:  # inherited, or of the class
            self.undo.callback(delattr, owner, name)
        setattr(owner, name, self.timed(part, getattr(owner, name)))

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, timed: its seconds are added to the part, less those that went to other parts within it."""
        own, now, waited = self.own, self.now, self.waited

        def run(*args: Any, **kwargs: Any) -> Any:
            claimed, start = self.claimed + waited(), now()
            try:
                return work(*args, **kwargs)
            finally:
                seconds = now() - start - (self.claimed + waited() - claimed)
                own[name] += seconds
                self.claimed += seconds

        return run

    def done(self) -> float:
        """The time at which the device has done all that it was given."""
        self.device.synchronize()
        return self.device.clock()
