"""A right engine of another make, for phase 9: the copies are queued on the model's own stream, behind each draw."""

from itertools import cycle

import torch

from minfer.phase9 import Engine
from minfer.phase9.copy_stream import Arrival
from tests.mutants.correct import Variant


class Behind:
    """No stream of its own: the moment after a copy comes before the next step all the same."""

    def __init__(self, device, most):
        self.device = device
        self.pages = cycle([device.pinned((most,), torch.int64) for _ in range(3)])

    def to_host(self, numbers):
        page = next(self.pages)[: len(numbers)]
        page.copy_(numbers, non_blocking=True)
        return Arrival(page, self.device.current_stream().moment())


class CopiesBehindTheDraw(Engine):
    def allocate(self):
        super().allocate()
        self.copies = Behind(self.device, self.options.max_batch)


VARIANTS = [Variant(9, CopiesBehindTheDraw)]
