"""PartClock: what the parts of an engine's forwards take by the host's clock, in the very steps that are counted.

    layers       products of the layers' weights
    head         the product that makes logits
    attention    storing keys and values, and attending
    gather       collecting a paged cache's blocks, which attention then reads
    communication   in operations between ranks, waiting for other ranks included

Each second is counted once: what a part waits for other ranks is communication's, gathering is not attention's too.
A call costs about a microsecond more. What is compiled is left as it is: attention that is compiled into a region has
no call to be timed, and is in none of the parts.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from minfer.core.attention import CausalAttention
from minfer.cost.probes import LAYERS
from minfer.phase7.product import PRODUCTS, Product

PARTS = ("layers", "head", "attention", "gather", "communication")


class PartClock:
    """While it is entered, `seconds` by part grow with every forward of `engine`, which is afterwards as it was."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.device = engine, engine.device
        ranks = getattr(engine, "ranks", None)
        self.groups: list[Any] = [ranks.tensor, ranks.world, ranks.host] if ranks else []
        self.now: Callable[[], float] = self.done if self.device.works_beside_host else self.device.clock
        self.own = dict.fromkeys(PARTS[:-1], 0.0)
        self.claimed = 0.0  # all of them together
        self.undo = ExitStack()

    @property
    def seconds(self) -> dict[str, float]:
        """By part, since it was made; communication: since the ranks were."""
        return {**self.own, "communication": self.waited()}

    def waited(self) -> float:
        """Seconds that this rank has spent in operations between ranks."""
        return sum([group.seconds for group in self.groups]) if self.groups else 0.0

    def __enter__(self) -> "PartClock":
        head = getattr(self.engine.model, "lm_head", None)
        self.time_products(head)
        if isinstance(head, nn.Module):
            self.time_forward(head, "head")
        cache = getattr(self.engine, "cache", None)
        attention = type(cache.layers[0]) if cache is not None else CausalAttention
        self.time_method(attention, "__call__", "attention")
        if hasattr(attention, "gather"):
            self.time_method(attention, "gather", "gather")
        return self

    def __exit__(self, *_: object) -> None:
        self.undo.close()

    def time_products(self, head: nn.Module | None) -> None:
        """Those of the layers; where regions are compiled, only what is behind the operator that these call."""
        within: set[nn.Module] = set(head.modules()) if head is not None else set()
        for part in self.engine.model.modules():
            if isinstance(part, Product) and part not in within:
                within |= set(part.modules())
                part.multiply = PRODUCTS[int(part.handle)] = self.timed("layers", part.multiply)
                self.undo.callback(part.exchange, part.layer)
        compilation = getattr(self.engine, "compilation", None)
        kinds = LAYERS if compilation is None or compilation.problem else LAYERS[1:]
        for part in self.engine.model.modules():
            if isinstance(part, kinds) and part not in within:
                self.time_forward(part, "layers")

    def time_forward(self, module: nn.Module, name: str) -> None:
        """Let a module's forward be of that part."""
        module.forward = self.timed(name, module.forward)
        self.undo.callback(delattr, module, "forward")

    def time_method(self, kind: type, method: str, name: str) -> None:
        """Let a method of all objects of a class be of that part."""
        if method in vars(kind):
            self.undo.callback(setattr, kind, method, vars(kind)[method])
        else:  # inherited
            self.undo.callback(delattr, kind, method)
        setattr(kind, method, self.timed(name, getattr(kind, method)))

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, whose seconds are added to a part, but for those that are other parts' meanwhile."""
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
        """The time when all that was queued is done."""
        self.device.synchronize()
        return self.device.clock()
