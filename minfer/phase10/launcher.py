"""Launchers: where the other ranks come from: processes that this one starts, or those that torchrun has started."""

import os
from abc import ABC, abstractmethod
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.group import RankError, World
from minfer.phase10.job import Job
from minfer.phase10.meeting import LOCAL, connect, device_of
from minfer.phase10.processes import Processes
from minfer.phase10.ranks import Others, Ranks
from minfer.phase10.shard_plan import Place
from minfer.phase10.torch_group import require_distributed
from minfer.phase10.worker import run_rank

LOAD_SECONDS = 600.0
"""Within which torchrun's ranks must have loaded. Processes that rank 0 starts report each tensor: see `Processes`."""

_engines = count()


class Launcher(ABC):
    """Starts the other ranks of an engine, or finds them."""

    @abstractmethod
    def launch(self, engine_cls: type, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """This rank's view of the world, with all ranks there. `checked` are the `options` as a dataclass."""


class ProcessLauncher(Launcher):
    """Starts the others on this machine, one process each; they end with the engine or with this process."""

    def launch(self, engine_cls: type, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """As rank 0. Raises `DeviceError` or `RankError`."""
        require_distributed()
        place = Place.of(0, checked.tensor_parallel, checked.pipeline_parallel)
        device = device_of(checked.device, 0)
        for rank in range(1, place.world):
            device_of(checked.device, rank)  # not there: refused here
        store = dist.TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False)
        job = Job.of(engine_cls, model, options, checked, store.port)
        others = Processes(job, run_rank, place.world, checked.rank_timeout)
        try:
            others.started()
            return connect(store, place, device, checked.rank_timeout, LOCAL, place.world, others)
        except BaseException:
            others.end()
            raise


class ThreadLauncher(Launcher):
    """Runs the others in threads of a `World`: for tests."""

    def __init__(self, world: World) -> None:
        self.world = world

    def launch(self, engine_cls: Any, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """As rank 0; the others run `engine_cls` too."""

        def ranks_of(rank: int) -> Ranks:
            place = Place.of(rank, checked.tensor_parallel, checked.pipeline_parallel)
            everyone = range(place.world)
            stage = range(place.stage * place.parts, (place.stage + 1) * place.parts)
            world, tensor, host = (self.world.group(rank, members) for members in (everyone, stage, everyone))
            others = Threads(self.world) if rank == 0 else None
            return Ranks(place, Device.get(checked.device), (world, tensor, host), place.world, others)

        self.world.start(
            checked.world, lambda rank: engine_cls.load(model, **{**options, "ranks": ranks_of(rank)}).serve()
        )
        return ranks_of(0)


class Threads(Others):
    """The other ranks as threads of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def loaded(self) -> None:
        """They are waited for in the first operation."""

    def blame(self, error: RankError) -> RankError:
        """As `Others`."""
        return RankError(self.world.failure() or str(error))

    def end(self) -> None:
        """As `Others`."""
        self.world.end()


class TorchrunLauncher(Launcher):
    """Takes the ranks that torchrun has started, on one host or several."""

    def launch(self, engine_cls: type, model: str, options: dict[str, Any], checked: Any) -> Ranks:
        """As the rank that the environment says. Raises `OptionsError` if there are more or fewer than asked for."""
        require_distributed()
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if world != checked.world:
            raise OptionsError(
                f"tensor_parallel = {checked.tensor_parallel} times pipeline_parallel = {checked.pipeline_parallel} "
                f"is {checked.world}, torchrun has started {world} ranks: start {checked.world}"
            )
        place = Place.of(rank, checked.tensor_parallel, checked.pipeline_parallel)
        from torch.distributed.rendezvous import rendezvous  # absent where torch.distributed is

        store, _, _ = next(rendezvous("env://", rank, world))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        device = device_of(checked.device, int(os.environ.get("LOCAL_RANK", rank)))
        host = LOCAL if local == world else os.uname().nodename
        prefix = f"minfer{next(_engines)}"  # the same on all ranks, which load engines in the same order
        own = dist.PrefixStore(prefix, store)
        others = TorchrunOthers(own, world) if rank == 0 else None

        def say(what: str) -> None:
            own.set(f"{what}{rank}", "")

        return connect(own, place, device, checked.rank_timeout, host, local, others, say)


class TorchrunOthers(Others):
    """The other ranks as processes of torchrun, which ends them all when one fails."""

    def __init__(self, store: Any, world: int) -> None:
        self.store, self.world = store, world

    def loaded(self) -> None:
        """As `Others`."""
        names = [f"loaded{rank}" for rank in range(1, self.world)]
        try:
            self.store.wait(names, timedelta(seconds=LOAD_SECONDS))
        except RuntimeError as error:
            raise RankError(f"not all ranks have loaded the model within {LOAD_SECONDS:g} s: {error}") from error

    def blame(self, error: RankError) -> RankError:
        """Each rank prints its own error."""
        return error

    def end(self) -> None:
        """They leave when they are told, or when they lose this one."""


def launcher_of(wanted: Any) -> Launcher:
    """The launcher that an option asks for: `auto`, `processes`, `torchrun`, or a world."""
    if isinstance(wanted, World):
        return ThreadLauncher(wanted)
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if wanted == "torchrun" and not under_torchrun:
        raise OptionsError("ranks = 'torchrun': RANK and WORLD_SIZE are not set: start this with torchrun")
    if wanted == "auto":
        wanted = "torchrun" if under_torchrun else "processes"
    launchers: dict[Any, type[Launcher]] = {"processes": ProcessLauncher, "torchrun": TorchrunLauncher}
    if wanted not in launchers:
        raise OptionsError(f"ranks = {wanted!r}: use auto, processes or torchrun")
    return launchers[wanted]()
