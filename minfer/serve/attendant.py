"""Attendant: takes an engine's steps for a server, steers them and shows them; in each replica's process is one too."""

import time
from functools import partial
from typing import Any

from minfer.core.sequence import Sequence
from minfer.phase5.state import debug_state
from minfer.phase11.memory import tensor_bytes
from minfer.serve.history import History
from minfer.serve.policy import Policy, in_hand

CELLS = 4096
"""Most cells of a block map; in a larger pool a cell stands for several blocks."""
FREE, CACHED = -1, -2
"""In a block map, beside the ids of requests; whoever draws one is told them with it."""


class Attendant:
    """Before each step sets its limits by the policy, after it notes who was in it; shows all as plain JSON values."""

    def __init__(self, engine: Any, policy: Policy) -> None:
        self.engine, self.policy = engine, policy
        self.history = History()
        self._constant: dict[str, int] | None = None  # memory that does not change

    def step(self) -> list[Sequence]:
        """A step of the engine."""
        self.policy.steer(self.engine)
        started = time.perf_counter()
        try:
            return self.engine.step()
        finally:
            self.history.note(self.engine, started, time.perf_counter() - started)

    def snapshot(self) -> dict[str, Any]:
        """What runs, what waits and who holds which blocks in this process; to be called between two steps."""
        engine = self.engine
        state, now = debug_state(engine.scheduler, engine.cache.usage(engine.owners), []), engine.device.clock()
        return {
            "max_batch": engine.options.max_batch,
            "small": self.policy.is_small(in_hand(engine)),
            "slots": [
                {
                    "slot": self.history.slots.get(sequence.id),
                    **_facts(sequence, now),
                    "phase": "decode" if sequence.output_ids else "prefill",
                    "cached_tokens": sequence.num_cached,
                    "output_tokens": len(sequence.output_ids),
                    "blocks": state["tables"].get(sequence.id, []),
                }
                for sequence in engine.scheduler.running
            ],
            "waiting": [_facts(sequence, now) for sequence in (*engine.scheduler.waiting, *engine.inbox)],
            "blocks": _blocks(state),
            "preemptions": state["preemptions"],
            "shared_tokens": state["shared_tokens"],
            "memory": self._memory(),
            "steps": [
                [step.number, now - step.started, step.seconds, step.tokens, step.waiting, step.rows]
                for step in self.history.steps
            ],
        }

    def _memory(self) -> dict[str, int]:
        """Bytes by part; together they are what the process, or the card, has taken."""
        engine = self.engine
        if self._constant is None:
            weights, buffers = tensor_bytes(engine.model)
            graphs = getattr(engine, "graphs", None)  # phase 8
            buffers += graphs.nbytes if graphs is not None else 0
            self._constant = {"weights": weights, "kv": engine.cache.pool.nbytes, "buffers": buffers}
        rest = engine.device.taken_memory() - sum(self._constant.values())
        return {**self._constant, "runtime": max(0, rest)}


def replicas_of(engine: Any) -> list[Any]:
    """The engines in other processes that answer the same queue: phase 10's replicas, as this process sees them."""
    replicas = getattr(engine, "replicas", None)
    return [] if replicas is None else replicas.all


def processes_of(engine: Any) -> list[Any]:
    """The processes without which an engine cannot step: those of phase 10's ranks and replicas that it has started."""
    others = getattr(getattr(engine, "ranks", None), "others", None)
    return [*getattr(others, "all", ()), *(replica.process for replica in replicas_of(engine))]


def attended(engine: Any, policy: Policy) -> Attendant:
    """An attendant for an engine; its replicas get one each."""
    for replica in replicas_of(engine):
        replica.ask(partial(attend, policy=policy))
    return Attendant(engine, policy)


def attend(worker: Any, policy: Policy) -> None:
    """A question to a replica, see `ReplicaWorker`: have an attendant take its steps."""
    worker.stepper = Attendant(worker.engine, policy)


def snapshot_of(worker: Any) -> dict[str, Any]:
    """A question to a replica: what its attendant shows."""
    return worker.stepper.snapshot()


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
        "marks": {"free": FREE, "cached": CACHED},
        "held_tokens": state["kv"]["held"],
    }
