"""Meeting: where a rank has its device, and how it meets the others and gets its groups."""

from collections.abc import Callable
from typing import Any

from minfer.core.device import Device
from minfer.phase10.gloo_group import GlooGroup, gloo
from minfer.phase10.ranks import Others, Ranks
from minfer.phase10.shard_plan import Place
from minfer.phase10.torch_group import IDLE, TorchGroup, nccl

LOCAL = "127.0.0.1"


def device_of(wanted: Any, local_rank: int) -> Device:
    """The device of a rank: the CPU for all, or one GPU each from the one that was asked for on."""
    device = Device.get(wanted)
    if device.torch_device.type == "cpu":
        return device
    return Device.get(f"{device.torch_device.type}:{(device.torch_device.index or 0) + local_rank}")


def connect(
    store: Any,
    place: Place,
    device: Device,
    timeout: float,
    host: str,
    local: int,
    others: Others | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> Ranks:
    """Meet the other ranks in `store` and make the groups; `local` ranks are on this machine, known as `host`.

    Called on all ranks, which need not be there yet. On the CPU all goes through Gloo; tensors on GPUs through NCCL,
    and what the host must know of a step through Gloo.
    """
    all_ranks = gloo(store, "world", place.rank, place.world, host, timeout)
    host_group = GlooGroup(all_ranks, timeout if place.rank == 0 else IDLE)
    stage = (f"stage{place.stage}", place.part, place.parts)
    if device.torch_device.type == "cpu":
        parts = gloo(store, *stage, host, timeout) if place.stages > 1 else all_ranks
        world: TorchGroup = GlooGroup(all_ranks, timeout)
        tensor: TorchGroup = GlooGroup(parts, timeout)
    else:
        world = TorchGroup(nccl(store, "nccl-world", place.rank, place.world, timeout), timeout)
        tensor = TorchGroup(nccl(store, *stage, timeout), timeout)
    return Ranks(place, device, (world, tensor, host_group), local, others, say)
