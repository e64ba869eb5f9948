"""CopyStream: copies between device and host that go on beside the model's work."""

from itertools import cycle

import torch
from torch import Tensor

from minfer.core.device import Device, Moment


class Arrival:
    """Numbers on their way to the host."""

    def __init__(self, buffer: Tensor, arrived: Moment) -> None:
        self.buffer, self.arrived = buffer, arrived

    def wait(self) -> Tensor:
        """The numbers, on the host, as soon as they are there; nothing that was queued later is waited for."""
        self.arrived.wait()
        return self.buffer


class CopyStream:
    """A stream for copies only. It waits for what it copies; the model's stream never waits for it.

    Two pinned buffers take turns: one is read while the other is filled. Invariant: a buffer is written again only by a
    later copy of this stream, which runs its copies in order.
    """

    def __init__(self, device: Device, most: int) -> None:
        """`most`: the most numbers in one copy."""
        self.device, self.stream = device, device.stream()
        self.buffers = cycle([device.pinned((most,), torch.int64) for _ in range(2)])

    def to_host(self, numbers: Tensor) -> Arrival:
        """Start to copy int64 `(n,)`, which the current stream computes; the caller keeps them until they arrive."""
        buffer = next(self.buffers)[: len(numbers)]
        self.stream.follow(self.device.current_stream().moment())
        with self.stream:
            buffer.copy_(numbers, non_blocking=True)
        return Arrival(buffer, self.stream.moment())
