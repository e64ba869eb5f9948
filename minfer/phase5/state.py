"""The scheduler's state as plain values, for tests, pictures and a server's `/slots`; and what fragmentation costs."""

from typing import Any

from minfer.core.sequence import Sequence
from minfer.phase4 import KVUsage
from minfer.phase5.scheduler import Scheduler


def debug_state(scheduler: Scheduler, usage: KVUsage, scheduled: list[tuple[Sequence, int]]) -> dict[str, Any]:
    """A JSON-able copy: blocks, who holds them, queues by request id, and the rows of the last step."""
    allocator = scheduler.allocator
    return {
        "num_blocks": allocator.num_blocks,
        "block_size": scheduler.block_size,
        "free": allocator.num_free,
        "used": allocator.num_blocks - allocator.num_free,
        "cached_blocks": allocator.cached,
        "references": list(allocator.references),
        "tables": {request_id: list(table) for request_id, table in scheduler.tables.items()},
        "num_cached": {sequence.id: sequence.num_cached for sequence in scheduler.running},
        "running": [sequence.id for sequence in scheduler.running],
        "waiting": [sequence.id for sequence in scheduler.waiting],
        "step": [{"id": s.id, "tokens": count, "kind": _kind(s, count)} for s, count in scheduled],
        "preemptions": scheduler.preemptions,
        "shared_tokens": scheduler.shared_tokens,
        "kv": _usage(usage),
        "kv_if_contiguous": _usage(contiguous_usage(scheduler)),
    }


def _kind(sequence: Sequence, count: int) -> str:
    """What the last step did for a request: part of its prompt, one new token, or again what a preemption lost."""
    if sequence.num_cached <= sequence.num_prompt:
        return "prefill"
    return "decode" if count == 1 else "recompute"


def _usage(usage: KVUsage) -> dict[str, float]:
    return {"held": usage.held, "allocated": usage.allocated, "unused": usage.unused}


def contiguous_usage(scheduler: Scheduler) -> KVUsage:
    """As if in a contiguous cache, which reserves for each running request the longest that it could become."""
    return KVUsage.of(scheduler.running, sum(sequence.max_length for sequence in scheduler.running))
