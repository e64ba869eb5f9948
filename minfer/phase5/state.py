"""The scheduler's state as plain values, for tests, pictures and a server's `/slots`; and what fragmentation costs."""

from typing import Any

from minfer.core.sequence import Sequence
from minfer.phase5.scheduler import Scheduler


def debug_state(scheduler: Scheduler, scheduled: list[Sequence]) -> dict[str, Any]:
    """A JSON-able copy: blocks, who holds them, queues by request id, and the rows of the last step."""
    allocator = scheduler.allocator
    return {
        "num_blocks": allocator.num_blocks,
        "block_size": scheduler.block_size,
        "free": allocator.num_free,
        "used": allocator.num_blocks - allocator.num_free,
        "cached": allocator.num_cached,
        "references": list(allocator.references),
        "tables": {request_id: list(table) for request_id, table in scheduler.tables.items()},
        "num_cached": {sequence.id: sequence.num_cached for sequence in scheduler.running},
        "running": [sequence.id for sequence in scheduler.running],
        "waiting": [sequence.id for sequence in scheduler.waiting],
        "step": [{"id": s.id, "tokens": s.num_cached, "finished": s.finished} for s in scheduled],
        "preemptions": scheduler.preemptions,
        "shared_tokens": scheduler.shared_tokens,
        "kv": kv_usage(scheduler),
    }


def kv_usage(scheduler: Scheduler) -> dict[str, float]:
    """Slots of the pool that hold tokens, that are allocated, and that contiguous reservation would take.

    Paging loses what is empty in each last block; a contiguous cache loses all that a request has reserved up to its
    longest possible answer and has not (or not yet) used. Shared blocks are counted once.
    """
    filled: dict[int, int] = {}
    for sequence in scheduler.running:
        for index, block in enumerate(scheduler.tables[sequence.id]):
            filled[block] = min(scheduler.block_size, sequence.num_cached - index * scheduler.block_size)
    held, allocated = sum(filled.values()), len(filled) * scheduler.block_size
    reserved = sum(sequence.max_length for sequence in scheduler.running)
    contiguous = sum(sequence.num_cached for sequence in scheduler.running)
    return {
        "tokens_held": held,
        "slots_allocated": allocated,
        "unused": 1 - held / allocated if allocated else 0.0,
        "contiguous_slots": reserved,
        "contiguous_unused": 1 - contiguous / reserved if reserved else 0.0,
    }
