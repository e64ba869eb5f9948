"""Probes: small pieces of work, timed alone: what a machine's memory and its operators can do."""

import statistics
from collections.abc import Callable

import torch

from minfer.core.device import Device

SLOW = 1.0  # seconds
READING = 2**26  # numbers: more than caches hold
LEAST, MOST = 0.05, 1000  # a probe is repeated for so many seconds, or so often


def seconds(work: Callable[[], object], device: Device, least: float = 0.0) -> float:
    """The median time of a call, repeated for `least` seconds (0: `LEAST`); its first time if that is too long.

    The median, not the least: a step makes hundreds of calls, which take what such calls usually take.
    """
    first = once(work, device)
    if first > SLOW:
        return first
    took = [once(work, device), once(work, device)]
    while sum(took) < (least or LEAST) and len(took) < MOST:
        took.append(once(work, device))
    return statistics.median(took)


def once(work: Callable[[], object], device: Device) -> float:
    """Seconds of one call, until the device has done it."""
    device.synchronize()
    start = device.clock()
    work()
    device.synchronize()
    return device.clock() - start


def operation(device: Device) -> float:
    """Seconds of an operator on so few numbers that only calling it costs."""
    x = torch.ones(8, 8, device=device.torch_device)

    def chain() -> None:
        y = x
        for _ in range(100):
            y = y * x + x

    return seconds(chain, device) / 200


def moving(device: Device) -> float:
    """Bytes per second of elementwise operators on the rows of a prompt, which caches hold."""
    x = torch.ones(256, 1536, device=device.torch_device)
    return 3 * x.nbytes / max(1e-9, seconds(lambda: x * x, device) - operation(device))


def reading(device: Device) -> float:
    """Bytes per second of reading far more than caches hold: a sum over 256 MB."""
    x = torch.ones(READING, device=device.torch_device)
    return x.nbytes / seconds(x.sum, device, least=0.3)


def multiplying(dtype: torch.dtype, device: Device) -> float:
    """FLOPs per second of a large product."""
    size = 768 if device.torch_device.type == "cpu" else 8192
    x = torch.randn(size, size, dtype=dtype, device=device.torch_device)
    return 2 * size**3 / seconds(lambda: x @ x, device)
