"""Operators: what torch.profiler saw of a run, counted and timed by kind."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minfer.core.measures.trace import Trace

KINDS = {
    "products": r"aten::(matmul|addmm|mm|bmm|_int_mm|_scaled_mm)$|::linear|_linear_pointwise|pack_mm|minfer::product",
    "attention": r"aten::scaled_dot_product_attention$|_fused_\w*(amax|index|masked_fill)",  # or compiled
    "head": r"minfer::head$",  # where somebody marks it
    "cache": r"aten::(index_copy_|index_select|index_put_)$",  # what caches write, and the paged one gathers
    "other": r"aten::embedding$",  # reads its rows by index_select
}
"""Operators of each kind, what they call included; whatever is of no kind is `other`."""
FUSED = "_fused_"
"""In the names of the kernels of torch.compile."""

NO_WORK = re.compile(
    r"aten::(_?view|view_as|_?reshape|_unsafe_view|_reshape_alias|transpose|t|permute|unsqueeze_?|squeeze_?|expand|"
    r"expand_as|as_strided_?|select|slice|narrow|split|split_with_sizes|chunk|unbind|flatten|unflatten|detach_?|alias|"
    r"lift_fresh|resolve_conj|resolve_neg|empty|empty_like|empty_strided|new_empty|resize_|result_type|promote_types|"
    r"to|contiguous|item|_local_scalar_dense|is_nonzero)$"
)
"""Operators that, where they call no other, only describe a tensor anew, make room, or read one number."""


@dataclass
class Operators:
    """Calls that do work, and the seconds of each kind; a call within another call is not counted twice."""

    calls: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    compiled: Counter[str] = field(default_factory=Counter)  # of these seconds, in kernels that the compiler wrote
    within: float = 0.0  # seconds inside the label
    events: Counter[str] = field(default_factory=Counter)  # that the profiler noted inside it, by kind; others: ""

    @classmethod
    def of(cls, run: Callable[[], object], label: str = "") -> "Operators":
        """What `run` calls; with a label, only what is inside the `record_function` ranges of that name."""
        made = cls()
        threads: dict[int, list[Frame]] = {}
        for event in Trace.of(run).records:
            stack = threads.setdefault(event.start_thread_id(), [])
            while stack and stack[-1].end <= event.start_ns():
                made._leave(stack)
            made._enter(stack, event, label)
        for stack in threads.values():
            while stack:
                made._leave(stack)
        return made

    def _enter(self, stack: "list[Frame]", event: Any, label: str) -> None:
        name, nanoseconds = event.name(), event.duration_ns()
        outer = stack[-1] if stack else Frame("", 0, not label, None)
        inside = outer.inside or name == label
        kind = outer.kind or (kind_of(name) if inside else None)
        stack.append(Frame(name, event.start_ns() + nanoseconds, inside, kind))
        self.events[kind or ""] += inside
        if inside and not outer.inside:
            self.within += nanoseconds / 1e9
        if kind and not outer.kind:
            self.seconds[kind] += nanoseconds / 1e9
            self.compiled[kind] += nanoseconds / 1e9 * (FUSED in name)

    def _leave(self, stack: "list[Frame]") -> None:
        """What called nothing that works may work itself."""
        frame = stack.pop()
        if frame.inside and not frame.works and _works(frame.name):
            self.calls[frame.kind or "other"] += 1
            frame.works = True
        if stack:
            stack[-1].works |= frame.works


@dataclass
class Frame:
    """A call that the trace is inside of."""

    name: str
    end: int  # nanoseconds
    inside: bool  # whether within the label
    kind: str | None
    works: bool = False  # whether something within it was counted


def kind_of(name: str) -> str | None:
    """The first of `KINDS` that an operator's name is of."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), None)


def _works(name: str) -> bool:
    """Whether it is an operator, or a kernel of torch.compile, that computes or copies."""
    return ("::" in name or FUSED in name) and not NO_WORK.match(name)
