"""Numbers of the host, on their way to the device while the host goes on."""

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """`values` as an int64 tensor on `device`, in the order of the work that is queued there.

    `torch.tensor(values, device=device)` would let the host wait until a card has done all of it.
    """
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)
