"""LiveView: what runs, waits and holds which blocks, as plain JSON values: for `/slots`, the page and `minfer top`."""

import asyncio
import time
from typing import Any

from minfer.core.sequence import Sequence
from minfer.phase11.memory import tensor_bytes
from minfer.serve.engine_thread import EngineThread, State
from minfer.serve.service import Service

FRESH = 0.2
"""Seconds for which a look at an engine serves all who ask."""
PATIENCE = 1.0
"""Seconds that one waits for an engine to end its step; after that the last look is shown again."""
CELLS = 4096
"""Most cells of a block map; in a larger pool a cell stands for several blocks."""
FREE, CACHED = -1, -2
"""In a block map, beside the ids of requests."""


class LiveView:
    """Looks at the engines between two steps, at most every `FRESH` seconds, however many watch."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.looks = [Look(thread) for thread in service.engines]

    async def slots(self) -> list[dict[str, Any]]:
        """Of each engine: its rows, its queue, its blocks."""
        return [{**look, "steps": None} for look in await self._engines()]

    async def everything(self) -> dict[str, Any]:
        """The same with the last steps, and figures of the last minute."""
        service = self.service
        engines = await self._engines()
        in_hand = sum(len(engine["slots"]) + len(engine["waiting"]) for engine in engines)
        return {
            "model": service.about.model,
            "phase": service.about.phase,
            "status": service.state,
            "uptime_s": time.time() - service.started,
            "policy": {"aim": str(service.policy.aim), "small": service.policy.is_small(in_hand)},
            "admitted": service.admission.requests,
            "rejected": service.admission.rejected,
            "figures": service.figures.snapshot(time.perf_counter()),
            "engines": engines,
        }

    async def _engines(self) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(look.take() for look in self.looks)))


class Look:
    """The last look at one engine."""

    def __init__(self, thread: EngineThread) -> None:
        self.thread = thread
        self.taken = 0.0
        self.seen: dict[str, Any] = {"slots": [], "waiting": [], "blocks": None, "memory": None, "steps": []}
        self._running: asyncio.Task | None = None
        self._constant: dict[str, int] | None = None  # memory that does not change

    async def take(self) -> dict[str, Any]:
        """What the engine holds now, or what it held when it was last seen; `age_s` says when that was."""
        if time.monotonic() - self.taken > FRESH and self.thread.state is State.READY:
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._look())
            await asyncio.wait((self._running,), timeout=PATIENCE)
        age = time.monotonic() - self.taken if self.taken else None
        return {**self.seen, "state": str(self.thread.state), "age_s": age}

    async def _look(self) -> None:
        self.seen = await self.thread.ask(self._picture)
        self.taken = time.monotonic()

    def _picture(self, engine: Any) -> dict[str, Any]:
        """In the engine's thread."""
        history, state, now = self.thread.history, engine.debug_state(), engine.device.clock()
        running, waiting = list(engine.scheduler.running), [*engine.scheduler.waiting, *engine.inbox]
        return {
            "max_batch": engine.options.max_batch,
            "slots": [
                {
                    "slot": history.slots.get(sequence.id),
                    **_facts(sequence, now),
                    "phase": "decode" if sequence.output_ids else "prefill",
                    "cached_tokens": sequence.num_cached,
                    "output_tokens": len(sequence.output_ids),
                    "blocks": state["tables"].get(sequence.id, []),
                }
                for sequence in running
            ],
            "waiting": [_facts(sequence, now) for sequence in waiting],
            "blocks": _blocks(state),
            "preemptions": state["preemptions"],
            "shared_tokens": state["shared_tokens"],
            "memory": self._memory(engine),
            "steps": [
                [step.number, now - step.started, step.seconds, step.tokens, step.waiting, step.rows]
                for step in history.steps
            ],
        }

    def _memory(self, engine: Any) -> dict[str, int]:
        """Bytes, by part; they add up to what the process, or the card, has taken."""
        if self._constant is None:
            weights, buffers = tensor_bytes(engine.model)
            graphs = getattr(engine, "graphs", None)  # phase 8
            buffers += graphs.nbytes if graphs is not None else 0
            self._constant = {"weights": weights, "kv": engine.cache.pool.nbytes, "buffers": buffers}
        rest = engine.device.taken_memory() - sum(self._constant.values())
        return {**self._constant, "runtime": max(0, rest)}


def _facts(sequence: Sequence, now: float) -> dict[str, Any]:
    return {
        "id": sequence.id,
        "prompt_tokens": sequence.num_prompt,
        "max_length": sequence.max_length,
        "age_s": now - sequence.timestamps.arrived,
    }


def _blocks(state: dict[str, Any]) -> dict[str, Any]:
    """The pool: numbers, and a map with the id of one holder in each cell."""
    owners = [FREE] * state["num_blocks"]
    for block in state["cached_blocks"]:
        owners[block] = CACHED
    for request, table in state["tables"].items():
        for block in table:
            owners[block] = request
    each = -(-len(owners) // CELLS)
    cells = owners if each == 1 else [max(owners[at : at + each]) for at in range(0, len(owners), each)]
    return {
        "size": state["block_size"],
        "total": state["num_blocks"],
        "free": state["free"],
        "used": state["used"],
        "cached": len(state["cached_blocks"]),
        "shared": sum(count > 1 for count in state["references"]),
        "per_cell": each,
        "map": cells,
        "held_tokens": state["kv"]["held"],
    }
