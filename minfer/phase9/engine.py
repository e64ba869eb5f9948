"""Phase 9's change: `advance` launches a step before the tokens of the one before are read; `prepare` feeds them.

And layers may stay on the host: `home` keeps them there, `prepare_model` has them fetched when their turn is.
"""

import re
from collections import deque
from typing import Any, cast

import torch
from torch import nn

from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.errors import OptionsError
from minfer.core.options import EngineOptions
from minfer.core.sequence import Sequence
from minfer.phase8 import Engine as Phase8Engine
from minfer.phase8 import FusedModel
from minfer.phase9.copy_stream import CopyStream
from minfer.phase9.flight import Flight
from minfer.phase9.options import StreamOptions
from minfer.phase9.usage import OverlapUsage
from minfer.phase9.weight_stream import WeightStream

LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")


class Engine(Phase8Engine):
    """The host schedules, reads and decodes text while the device computes."""

    Options = StreamOptions
    options: StreamOptions

    step_type = Flight
    launched: deque[Flight]  # type: ignore[assignment]

    @classmethod
    def home(cls, name: str, config: ModelConfig, options: EngineOptions) -> torch.device:
        """As before; a layer that is offloaded is never on the device as a whole."""
        layer, chosen = LAYER.match(name), cast(StreamOptions, options).offloaded(config.num_layers)
        on_host = layer is not None and int(layer[1]) in chosen
        return torch.device("cpu") if on_host else super().home(name, config, options)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """As before; then move what is offloaded to pinned memory."""
        prepared = super().prepare_model(model)
        chosen = self.options.offloaded(self.config.num_layers)
        if not chosen:
            return prepared
        if not isinstance(prepared, FusedModel):
            raise OptionsError(
                f"offload_layers = {len(chosen)} goes with models of minfer's own, whose layers it knows: "
                f"a {type(prepared).__name__} has to be on the device as a whole"
            )
        self.weights = WeightStream(prepared, chosen, self.device)
        return prepared

    def allocate(self) -> None:
        """As before; and a stream for copies."""
        self.copies = CopyStream(self.device, self.options.max_batch)
        self.overlap = OverlapUsage()
        super().allocate()

    def advance(self) -> list[Sequence]:
        """Launch the step after the one that is in flight, then land that one. With none in flight, launch it first."""
        self.drop_unwanted()
        if not self.launched and not self.take_off():
            return []
        obstacle = self.follow()
        self.overlap.landed(obstacle)
        advanced = self.touch_down()
        self.drop_unwanted()
        if self.launched and self.launched[0].error is not None:  # of the step that was just launched
            self.overlap.landed("failure")
            advanced = list(dict.fromkeys([*advanced, *self.touch_down()]))
        return advanced

    def follow(self) -> str:
        """Launch the next step behind the one in flight. Returns why it could not; empty: it did, or already had."""
        if not self.device.works_beside_host:  # the next step would be computed before this one's tokens are shown
            return "host"
        if len(self.launched) > 1:  # the host was interrupted while it waited
            return ""
        if self.scheduler.suspects:
            return "failure"
        return self.launched[0].obstacle() or ("" if self.take_off() else "last")

    def take_off(self) -> bool:
        """Launch a step and send for its tokens. False: nobody has anything to do."""
        before = len(self.launched)
        self.launch_next()
        if len(self.launched) == before:
            return False
        self.launched[-1].depart(self.copies)
        return True

    def touch_down(self) -> list[Sequence]:
        """Wait for the tokens of the oldest step, and take them in."""
        self.launched[0].arrive()
        return self.land()

    def drop_unwanted(self) -> None:
        """Forget steps of which every request has ended; what they still write comes before any later step's work."""
        while self.launched and not self.launched[0].is_wanted:
            self.launched.popleft()

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """As before; tokens that only the step in flight knows are put into the batch on the device."""
        batch = super().prepare(sequences)
        if len(self.launched) > 1:
            self.launched[0].feed(batch)
        return batch

    def overlap_usage(self) -> dict[str, Any]:
        """How many steps overlapped, and why others did not, as plain JSON values; see `OverlapUsage`."""
        with self.stepping:
            return self.overlap.figures()
