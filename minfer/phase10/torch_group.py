"""TorchGroup: a group over one `torch.distributed` process group, Gloo or NCCL, that belongs to one engine only.

The process groups are made here from a store, not by `init_process_group`, which knows one world per process: so two
engines can live side by side.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from minfer.core.errors import DeviceError
from minfer.core.group import Group, RankError

IDLE = 10 * 365 * 86400.0
"""Seconds that a rank waits for the next step: for ever."""


def require_distributed() -> None:
    """Raise `DeviceError` where torch was built without `torch.distributed`."""
    if not dist.is_available():
        raise DeviceError(
            "this torch was built without torch.distributed, which tensor_parallel and pipeline_parallel need: "
            "install another build, or load with 1 of each"
        )


class TorchGroup(Group):
    """Operations on `made`, which fail after `timeout` seconds without an answer from the others."""

    def __init__(self, made: Any, timeout: float) -> None:
        self.made: Any = made
        self.seconds = 0.0  # that this host has spent in operations; GPUs work on beside it
        self.rank, self.size = made.rank(), made.size()
        self.timeout = timedelta(seconds=timeout)
        from torch._C._distributed_c10d import AllgatherOptions  # absent where torch.distributed is

        self.reducing, self.gathering = dist.AllreduceOptions(), AllgatherOptions()
        self.spreading = dist.BroadcastOptions()
        for options in (self.reducing, self.gathering, self.spreading):
            options.timeout = self.timeout

    def reduced(self, x: Tensor) -> Tensor:
        """As `Group`."""
        self._do("all_reduce", lambda: [self.made.allreduce([x], self.reducing)])
        return x

    def gathered(self, x: Tensor, into: Tensor) -> Tensor:
        """As `Group`."""
        parts = list(into.unbind(0))
        self._do("all_gather", lambda: [self.made.allgather([parts], [x.contiguous()], self.gathering)])
        return into

    def spread(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        self.spreading.rootRank = source
        self._do("broadcast", lambda: [self.made.broadcast([x], self.spreading)])
        return x

    def sent(self, x: Tensor, to: int) -> None:
        """As `Group`."""
        self._do(f"send to rank {to}", lambda: [self.made.send([x], to, 0)])

    def received(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        self._do(f"receive from rank {source}", lambda: [self.made.recv([x], source, 0)])
        return x

    def leave(self) -> None:
        """Let go of the connections now: at the end of the interpreter, torch ends the process over broken ones."""
        made, self.made = self.made, None
        if hasattr(made, "abort"):
            made.abort()

    def _do(self, what: str, start: Callable[[], list[Any]]) -> None:
        """Start something, and wait until all of it is done."""
        if self.made is None:
            raise RankError(f"rank {self.rank} of {self.size} has left the others: no {what}")
        began = time.perf_counter()
        try:
            for work in start():
                work.wait(self.timeout)
        except RuntimeError as error:
            raise RankError(f"rank {self.rank} of {self.size} in {what}: {error}") from error
        self.seconds += time.perf_counter() - began


def nccl(store: Any, name: str, rank: int, size: int, timeout: float) -> Any:
    """An NCCL process group for tensors on NVIDIA cards. Raises `DeviceError` where torch has no NCCL."""
    if not dist.is_nccl_available():
        raise DeviceError("this torch was built without NCCL, which several GPUs need: use a CUDA build, or device=cpu")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupNCCL(dist.PrefixStore(name, store), rank, size, options)
