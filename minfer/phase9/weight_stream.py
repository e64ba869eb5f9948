"""WeightStream: layers that live on the host, each fetched into one of two buffers while the layers before it compute.

Of twelve layers 1, 4, 7 and 10 are on the host, as numbers 0 to 3:

    layer      0  1  2  3  4  5  6  7  8  9 10 11
    buffer 0      0  ···fetch 2···  2  ···fetch 0 of the next step
    buffer 1               1  ···fetch 3···  3  ···fetch 1 of the next step
"""

from collections.abc import Sequence

import torch
from torch import nn

from minfer.core.device import Device, Moment
from minfer.phase8 import FusedModel
from minfer.phase9.host_weights import HostWeights

BUFFERS = 2


class WeightStream:
    """Fetches weights on a stream of its own. Number n of the chosen layers always has buffer n % 2.

    Invariants: a layer computes only after its weights have come; they are overwritten only after it has computed.
    """

    def __init__(self, model: FusedModel, chosen: Sequence[int], device: Device) -> None:
        """Move the weights of the `chosen` layers to the host, in order, and be told by the model when they run."""
        layers = [model.layers[index] for index in chosen]
        self.device, self.stream = device, device.stream()
        self.numbers = {id(layer): number for number, layer in enumerate(layers)}
        self.weights = [HostWeights(layer, device) for layer in layers]
        largest = max(weights.nbytes for weights in self.weights)
        count = min(BUFFERS, len(layers))
        self.buffers = [torch.empty(largest, dtype=torch.uint8, device=device.torch_device) for _ in range(count)]
        self.holds: list[int | None] = [None] * count
        self.come: list[Moment] = [self.stream.moment()] * count
        for number, weights in enumerate(self.weights):
            weights.bind(self.buffers[number % BUFFERS])
        for number in range(count):
            self.fetch(number)
        model.will_run, model.has_run = self.will_run, self.has_run

    def will_run(self, layer: nn.Module) -> None:
        """Let the device wait for the layer's weights, which are on their way unless a step broke off."""
        number = self.numbers.get(id(layer))
        if number is not None:
            self.fetch(number)
            self.device.current_stream().follow(self.come[number % BUFFERS])

    def has_run(self, layer: nn.Module) -> None:
        """Its buffer is free for the one after the next: in this step, or in the next one."""
        number = self.numbers.get(id(layer))
        if number is not None:
            following = number + BUFFERS
            self.fetch(following if following < len(self.weights) else number % BUFFERS)

    def fetch(self, number: int) -> None:
        """Queue the copy of a layer's weights into its buffer, unless they are there."""
        buffer = number % BUFFERS
        if self.holds[buffer] == number:
            return
        weights = self.weights[number]
        self.stream.follow(self.device.current_stream().moment())  # after whatever computes with the buffer now
        with self.stream:
            self.buffers[buffer][: weights.nbytes].copy_(weights.bytes, non_blocking=True)
        self.holds[buffer], self.come[buffer] = number, self.stream.moment()
