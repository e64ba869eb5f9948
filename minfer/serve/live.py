"""LiveView: what runs, waits and holds which blocks, as plain JSON values: for `/slots`, the page and `minfer top`."""

import asyncio
import time
from typing import Any

from minfer.core.group import RankError
from minfer.serve.attendant import replicas_of, snapshot_of
from minfer.serve.engine_thread import EngineThread, State
from minfer.serve.service import Service

FRESH = 0.2
"""Seconds for which a look at an engine serves all who ask."""
PATIENCE = 1.0
"""Seconds that one waits for an engine to end its step; after that the last look is shown again."""


class LiveView:
    """Looks at the engines and their replicas between two steps, at most every `FRESH` seconds, however many watch."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.looks = [Look(LocalEngine(thread)) for thread in service.engines]
        self._found: dict[EngineThread, list[Look]] = {}  # replicas, of those that have loaded

    async def slots(self) -> list[dict[str, Any]]:
        """Of each engine: its rows, its queue, its blocks; `replica` says which engine has it."""
        return [{**look, "steps": None} for look in await self._engines()]

    async def replicas(self) -> list[dict[str, Any]]:
        """The same of the replicas in other processes, as far as they were ever seen."""
        return [look for look in await _taken(self._replicas()) if look["blocks"]]

    async def everything(self) -> dict[str, Any]:
        """The same of all engines, with their last steps and the figures of the last minute."""
        service = self.service
        engines = await self._engines()
        return {
            "model": service.about.model,
            "phase": service.about.phase,
            "status": service.state,
            "uptime_s": time.time() - service.started,
            "policy": {"aim": str(service.policy.aim), "small": all(engine["small"] for engine in engines)},
            "admitted": service.admission.requests,
            "rejected": service.admission.rejected,
            "figures": service.figures.snapshot(time.perf_counter()),
            "engines": engines,
        }

    async def _engines(self) -> list[dict[str, Any]]:
        seen = await _taken([*self.looks, *self._replicas()])
        for number, engine in enumerate(seen):
            engine["replica"] = number
            engine["slots"] = [{"replica": number, **slot} for slot in engine["slots"]]
        return seen

    def _replicas(self) -> list["Look"]:
        for thread in self.service.ready:
            if thread not in self._found:
                self._found[thread] = [Look(ReplicaEngine(thread, replica)) for replica in replicas_of(thread.engine)]
        return [look for looks in self._found.values() for look in looks]


class LocalEngine:
    """An engine in a thread of this process."""

    def __init__(self, thread: EngineThread) -> None:
        self.thread = thread

    @property
    def state(self) -> State:
        """Of the engine."""
        return self.thread.state

    async def snapshot(self) -> dict[str, Any]:
        """See `Attendant.snapshot`."""
        return await self.thread.ask(self.thread.attendant.snapshot)


class ReplicaEngine:
    """A replica of a thread's engine, in a process of its own; it answers whatever this process's engine is doing."""

    def __init__(self, thread: EngineThread, replica: Any) -> None:
        self.thread, self.replica = thread, replica

    @property
    def state(self) -> State:
        """Of the replica; when it dies, so does its engine, as soon as it steps."""
        return State.DEAD if self.replica.process.is_dead else self.thread.state

    async def snapshot(self) -> dict[str, Any]:
        """See `Attendant.snapshot`; ages are since the arrival in this process."""
        seen = await asyncio.to_thread(self.replica.ask, snapshot_of)
        now = self.thread.engine.device.clock()
        for one in (*seen["slots"], *seen["waiting"]):
            given = self.replica.given.get(one["id"])
            if given is not None:
                one["age_s"] = now - given.sequence.timestamps.arrived
        return seen


class Look:
    """The last look at one engine."""

    def __init__(self, at: LocalEngine | ReplicaEngine) -> None:
        self.at = at
        self.taken = 0.0
        self.seen: dict[str, Any] = {
            "small": True,
            "slots": [],
            "waiting": [],
            "blocks": None,
            "preemptions": 0,
            "memory": None,
            "steps": [],
        }
        self._running: asyncio.Task | None = None

    async def take(self) -> dict[str, Any]:
        """What the engine holds now, or what it held when it was last seen; `age_s` says when that was."""
        if time.monotonic() - self.taken > FRESH and self.at.state is State.READY:
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._look())
            await asyncio.wait((self._running,), timeout=PATIENCE)
        age = time.monotonic() - self.taken if self.taken else None
        return {**self.seen, "state": str(self.at.state), "age_s": age}

    async def _look(self) -> None:
        try:
            self.seen = await self.at.snapshot()
        except RankError:  # gone: its state says so
            return
        self.taken = time.monotonic()


async def _taken(looks: list[Look]) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(look.take() for look in looks)))
