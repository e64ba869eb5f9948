"""Operators: what torch.profiler saw of a run, counted and timed by kind."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import ProfilerActivity, profile

KINDS = {
    "products": r"aten::(matmul|addmm|mm|bmm|_int_mm|_scaled_mm)$|::linear|_linear_pointwise|pack_mm|minfer::product",
    "attention": r"aten::scaled_dot_product_attention$",
    "cache": r"aten::(index_copy_|index_select)$",  # what the paged cache writes and gathers
    "other": r"aten::embedding$",  # reads its rows by index_select
}
"""Operators of each kind, what they call included; whatever is of no kind is `other`."""

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
    within: float = 0.0  # seconds inside the label

    @classmethod
    def of(cls, run: Callable[[], object], label: str = "") -> "Operators":
        """What `run` calls; with a label, only what is inside the `record_function` ranges of that name."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            run()
        made = cls()
        threads: dict[int, list[Frame]] = {}
        for event in _trace(profiler):
            stack = threads.setdefault(event["tid"], [])
            while stack and stack[-1].end <= event["ts"]:
                made._leave(stack)
            made._enter(stack, event, label)
        for stack in threads.values():
            while stack:
                made._leave(stack)
        return made

    def _enter(self, stack: "list[Frame]", event: dict[str, Any], label: str) -> None:
        outer = stack[-1] if stack else Frame("", 0.0, not label, None)
        inside = outer.inside or event["name"] == label
        kind = outer.kind or (_kind(event["name"]) if inside else None)
        stack.append(Frame(event["name"], event["ts"] + event["dur"], inside, kind))
        if inside and not outer.inside:
            self.within += event["dur"] / 1e6
        if kind and not outer.kind:
            self.seconds[kind] += event["dur"] / 1e6

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
    end: float
    inside: bool  # whether within the label
    kind: str | None
    works: bool = False  # whether something within it was counted


def _trace(profiler: profile) -> list[dict[str, Any]]:
    """The trace's calls by their start, in microseconds; outer ones first.

    The file has them in a tenth of the time and of the memory that `profiler.events()` takes for a long run.
    """
    with TemporaryDirectory(prefix="minfer-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    calls = [event for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    return sorted(calls, key=lambda event: (event["ts"], -event["dur"]))


def _kind(name: str) -> str | None:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), None)


def _works(name: str) -> bool:
    """Whether it is an operator, or a kernel of torch.compile, that computes or copies."""
    return ("::" in name or "_fused_" in name) and not NO_WORK.match(name)
