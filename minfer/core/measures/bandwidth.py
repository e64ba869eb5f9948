"""Bandwidth: how fast the device's memory is, measured, since data sheets promise what no program sees."""

import torch

from minfer.core.device import Device

NBYTES = 2**27
"""Larger than the caches of any device."""


def copy_bandwidth(device: Device) -> float:
    """Bytes per second of a large copy, read and written: the best of five, after one that makes the pages."""
    source = torch.ones(NBYTES, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        device.synchronize()
        started = device.clock()
        target.copy_(source)
        device.synchronize()
        best = min(best, device.clock() - started)
    return 2 * NBYTES / best
