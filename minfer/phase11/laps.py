"""Laps: the host's time in the engine's steps, shared out among the parts of what was launched and what has landed."""

from torch.profiler import record_function

from minfer.core.device import Device

PARTS = ("schedule", "prepare", "forward", "sample", "commit")
"""In the order of a step. `commit` has the wait for the tokens in it, and with it what the device had still to do.

Where steps overlap, the `commit` of one comes after the other parts of the next: the parts of a step are then not one
behind the other, and what lies between them belongs to another step.
"""

RANGE = "minfer."
"""How the names of ranges in a trace begin: `minfer.step`, a turn of the engine, and in it `minfer.forward` …"""

Seconds = dict[str, float]


class Laps:
    """Each part lasts until the next begins, so the parts add up to the turns, whatever lies between them.

    While `tracing`, turns and parts are also ranges in torch.profiler's trace; invariant: between turns none is open.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tracing = False
        self.part: str | None = None  # None: no turn is running
        self.seconds: Seconds = {}  # of whom the running part is
        self.since = 0.0
        self._ranges: list[record_function] = []

    def begin(self, seconds: Seconds) -> None:
        """A turn begins by scheduling a step that has these `seconds`."""
        if self.tracing:
            self._open("step")
            self._open(PARTS[0])
        self.seconds, self.part = seconds, PARTS[0]
        self.since = self.device.clock()

    def next(self, part: str, seconds: Seconds) -> None:
        """The running part ends here; `part` of the step that has these `seconds` begins."""
        self._share_out()
        self.seconds, self.part = seconds, part
        if self._ranges:
            self._close()
            self._open(part)

    def end(self) -> None:
        """The turn ends, and with it its last part."""
        self._share_out()
        self.part = None
        while self._ranges:
            self._close()

    def _share_out(self) -> None:
        now = self.device.clock()
        if self.part is not None:
            self.seconds[self.part] += now - self.since
        self.since = now

    def _open(self, name: str) -> None:
        opened = record_function(RANGE + name)
        opened.__enter__()
        self._ranges.append(opened)

    def _close(self) -> None:
        self._ranges.pop().__exit__(None, None, None)
