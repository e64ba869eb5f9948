"""Laps: a step's time on the host, shared out among its parts."""

from torch.profiler import record_function

from minfer.core.device import Device

PARTS = ("schedule", "prepare", "forward", "sample", "commit")
"""In the order of a step. `commit` has the wait for the tokens in it, and with it what the device had still to do."""

RANGE = "minfer."
"""How the names of ranges in a trace begin: `minfer.step`, and in it `minfer.forward` …"""


class Laps:
    """Each part lasts until the next begins, so the parts add up to the step, whatever lies between them.

    While `tracing`, the step and each part are also ranges in torch.profiler's trace; invariant: at `end` none is open.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tracing = False
        self.current: str | None = None  # None: no step is running
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.started = self.since = 0.0
        self._ranges: list[record_function] = []

    def begin(self) -> None:
        """A step begins, and its first part."""
        self.seconds.update(dict.fromkeys(PARTS, 0.0))
        self.current = PARTS[0]
        if self.tracing:
            self._open("step")
            self._open(self.current)
        self.started = self.since = self.device.clock()

    def next(self, part: str) -> None:
        """The running part ends here and `part` begins; nothing outside of a step."""
        if self.current is None:
            return
        now = self.device.clock()
        self.seconds[self.current] += now - self.since
        self.since, self.current = now, part
        if self._ranges:
            self._close()
            self._open(part)

    def end(self) -> float:
        """The step ends, and with it its last part; returns its seconds."""
        now = self.device.clock()
        if self.current is not None:
            self.seconds[self.current] += now - self.since
        self.current = None
        while self._ranges:
            self._close()
        return now - self.started

    def _open(self, name: str) -> None:
        opened = record_function(RANGE + name)
        opened.__enter__()
        self._ranges.append(opened)

    def _close(self) -> None:
        self._ranges.pop().__exit__(None, None, None)
