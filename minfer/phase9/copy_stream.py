"""CopyStream: copies between device and host that go on beside the model's work."""

from itertools import cycle

import torch
from torch import Tensor

from minfer.core.device import Device, Moment


class Arrival:
    """Numbers on their way to the host."""

    def __init__(self, page: Tensor, arrived: Moment) -> None:
        self.page, self.arrived = page, arrived

    def wait(self) -> Tensor:
        """The numbers, on the host, as soon as they are there; nothing that was queued later is waited for."""
        self.arrived.wait()
        return self.page


class CopyStream:
    """A stream for copies only. It waits for what it copies; the model's stream never waits for it.

    Invariant: a page is written again only by a later copy of this stream, which does them in order.
    """

    def __init__(self, device: Device, most: int) -> None:
        """`most`: numbers of a copy."""
        self.device, self.stream = device, device.stream()
        self.pages = cycle([device.pinned((most,), torch.int64) for _ in range(2)])  # one is read, one is on its way

    def to_host(self, numbers: Tensor) -> Arrival:
        """Send int64 `(n,)`, which the current stream makes; whoever asks keeps them until they have arrived."""
        page = next(self.pages)[: len(numbers)]
        self.stream.follow(self.device.current_stream().moment())
        with self.stream:
            page.copy_(numbers, non_blocking=True)
        return Arrival(page, self.stream.moment())
