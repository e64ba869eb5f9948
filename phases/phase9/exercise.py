"""Phase 9, Streams: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 22 points. A copy beside the model's work: Arrival.wait, CopyStream.to_host
Task 2, 23 points. Tokens that only the device knows: Flight.depart, Flight.feed, Flight.arrive, Engine.prepare
Task 3, 35 points. One step ahead: Engine.advance, Engine.follow, Engine.take_off, Flight.obstacle
Task 4, 20 points. Layers that stay at home: WeightStream.will_run, WeightStream.has_run, WeightStream.fetch,
    HostWeights.bind

Copy it (`minfer start 9`), write, then look what is right: `minfer check 9`, or
`pytest tests/phase9 --engine work/phase9.py`. Hints: `minfer hint 9 1`.
It builds on the reference of phase 8; to build on your own, import that instead.
"""

from collections import deque
from collections.abc import Sequence as AbcSequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, cast

import torch
from phase9_given import ALIGNMENT, BUFFERS, LAYER, OverlapUsage, StreamOptions, make_plain, tensors_of
from torch import Tensor, nn

from minfer.core.batch import ForwardBatch
from minfer.core.config import ModelConfig
from minfer.core.device import Device, Moment
from minfer.core.errors import OptionsError
from minfer.core.options import EngineOptions
from minfer.core.sampling import needs_history
from minfer.core.sequence import Sequence
from minfer.core.upload import upload
from minfer.phase8 import Engine as Phase8Engine
from minfer.phase8 import FusedModel, Step

# ==== phase9/copy_stream.py =========================================================================================
# CopyStream: copies between device and host that go on beside the model's work.


class Arrival:
    """Numbers on their way to the host."""

    def __init__(self, buffer: Tensor, arrived: Moment) -> None:
        self.buffer, self.arrived = buffer, arrived

    def wait(self) -> Tensor:
        """The numbers, on the host, as soon as they are there; nothing that was queued later is waited for."""
        raise NotImplementedError("P9 task 1: Arrival.wait")


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
        raise NotImplementedError("P9 task 1: CopyStream.to_host")


# ==== phase9/flight.py ==============================================================================================
# Flight: a step whose tokens are still on their way to the host while the next one is launched.


@dataclass
class Flight(Step):
    """From `depart` to `arrive` its tokens are known to the device only: there the next step takes them."""

    arrival: Arrival | None = None

    def depart(self, copies: CopyStream) -> None:
        """The step is launched: send for its tokens."""
        raise NotImplementedError("P9 task 2: Flight.depart")

    def feed(self, batch: ForwardBatch) -> None:
        """Put the pending tokens into the batch of the next step, each where its sequence's last token belongs."""
        raise NotImplementedError("P9 task 2: Flight.feed")

    def arrive(self) -> None:
        """Wait for the tokens; those drawn for requests that have ended since the launch are thrown away."""
        raise NotImplementedError("P9 task 2: Flight.arrive")

    @property
    def is_wanted(self) -> bool:
        """Whether any of its requests goes on."""
        return not all(sequence.finished for sequence in self.scheduled)

    def obstacle(self) -> str:
        """Why the next step cannot be launched before this one's tokens are read; empty: it can."""
        raise NotImplementedError("P9 task 3: Flight.obstacle")


# ==== phase9/host_weights.py ========================================================================================
# HostWeights: the weights of one layer, end to end in pinned memory, so that one copy brings them all.


class HostWeights:
    """A layer whose tensors lie in a buffer of the device, in which they are only while it is the layer's turn."""

    def __init__(self, layer: nn.Module, device: Device) -> None:
        """Take the layer's tensors out of it; `bind` gives it others."""
        for module in list(layer.modules()):
            make_plain(module)
        self.layer, self.offsets, end = layer, [], 0
        for _, _, tensor in tensors_of(layer):
            self.offsets.append(end)
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        self.bytes = device.pinned((end,), torch.uint8)
        for (_, _, tensor), offset in zip(tensors_of(layer), self.offsets, strict=True):
            self.bytes[offset : offset + tensor.nbytes].copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory, and of a buffer that takes them."""
        return len(self.bytes)

    def bind(self, buffer: Tensor) -> None:
        """Let the layer's tensors be parts of `buffer`, uint8 of `nbytes` at least: from now on, and nothing else."""
        raise NotImplementedError("P9 task 4: HostWeights.bind")


# ==== phase9/weight_stream.py =======================================================================================
# WeightStream: layers that live on the host, each fetched into one of two buffers while the layers before it compute.
#
# Of twelve layers 1, 4, 7 and 10 are on the host, as numbers 0 to 3:
#
#     layer      0  1  2  3  4  5  6  7  8  9 10 11
#     buffer 0      0  ···fetch 2···  2  ···fetch 0 of the next step
#     buffer 1               1  ···fetch 3···  3  ···fetch 1 of the next step


class WeightStream:
    """Fetches weights on a stream of its own. Number n of the chosen layers always has buffer n % 2.

    Invariants: a layer computes only after its weights have come; they are overwritten only after it has computed.
    """

    def __init__(self, model: FusedModel, chosen: AbcSequence[int], device: Device) -> None:
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
        raise NotImplementedError("P9 task 4: WeightStream.will_run")

    def has_run(self, layer: nn.Module) -> None:
        """Its buffer is free for the one after the next: in this step, or in the next one."""
        raise NotImplementedError("P9 task 4: WeightStream.has_run")

    def fetch(self, number: int) -> None:
        """Queue the copy of a layer's weights into its buffer, unless they are there."""
        raise NotImplementedError("P9 task 4: WeightStream.fetch")


# ==== phase9/engine.py ==============================================================================================
# Phase 9's change: `advance` launches a step before the tokens of the one before are read; `prepare` feeds them.
#
# And layers may stay on the host: `home` keeps them there, `prepare_model` has them fetched when their turn is.


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
        raise NotImplementedError("P9 task 3: Engine.advance")

    def follow(self) -> str:
        """Launch the next step behind the one in flight. Returns why it could not; empty: it did, or already had."""
        raise NotImplementedError("P9 task 3: Engine.follow")

    def take_off(self) -> bool:
        """Launch a step and send for its tokens. False: nobody has anything to do."""
        raise NotImplementedError("P9 task 3: Engine.take_off")

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
        raise NotImplementedError("P9 task 2: Engine.prepare")

    def overlap_usage(self) -> dict[str, Any]:
        """How many steps overlapped, and why others did not, as plain JSON values; see `OverlapUsage`."""
        with self.stepping:
            return self.overlap.figures()
