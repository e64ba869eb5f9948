"""Phase 9's change: `advance` launches a step before the tokens of the one before are read; `prepare` feeds them."""

from collections import deque
from typing import Any

from minfer.core.batch import ForwardBatch
from minfer.core.sequence import Sequence
from minfer.phase8 import Engine as Phase8Engine
from minfer.phase8 import GraphOptions
from minfer.phase9.copy_stream import CopyStream
from minfer.phase9.flight import Flight
from minfer.phase9.usage import OverlapUsage


class Engine(Phase8Engine):
    """The host schedules, reads and decodes text while the device computes."""

    Options = GraphOptions
    options: GraphOptions

    step_type = Flight
    launched: deque[Flight]  # type: ignore[assignment]

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
        """Launch the next step behind the one in flight. Returns why not, or nothing."""
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
        """As before; what the step in flight draws is fed on the device."""
        batch = super().prepare(sequences)
        if len(self.launched) > 1:
            self.launched[0].feed(batch)
        return batch

    def overlap_usage(self) -> dict[str, Any]:
        """How many steps overlapped, and why others did not, as plain JSON values; see `OverlapUsage`."""
        with self.stepping:
            return self.overlap.figures()
