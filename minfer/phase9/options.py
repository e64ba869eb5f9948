"""Phase 9's options."""

from dataclasses import dataclass

from minfer.core.errors import OptionsError
from minfer.core.options import at_least, option
from minfer.phase8 import GraphOptions


@dataclass(frozen=True)
class StreamOptions(GraphOptions):
    """Phase 9's options."""

    offload_layers: int = option(0, "layers whose weights stay in host memory and are fetched in each step; no graphs")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "offload_layers", 0)
        if self.offload_layers and self.graph_batch:
            raise OptionsError(
                f"graph_batch = {self.graph_batch} with offload_layers = {self.offload_layers}: a graph is recorded "
                "over weights that stay where they are: leave one of the two out"
            )
        if self.offload_layers:
            object.__setattr__(self, "graph_batch", 0)  # the default, which is known only now

    def offloaded(self, layers: int) -> list[int]:
        """Which of so many layers stay on the host: evenly spaced, so that others compute while one is fetched.

        Raises `OptionsError` if there are not as many.
        """
        count = self.offload_layers
        if count > layers:
            raise OptionsError(f"offload_layers = {count}: the model has {layers} layers: give at most that")
        return [(2 * number + 1) * layers // (2 * count) for number in range(count)]
