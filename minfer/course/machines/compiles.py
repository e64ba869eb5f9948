"""Compiles: a `torch.compile` backend that compiles nothing, and counts what it is given and how often that runs."""

from collections.abc import Callable
from typing import Any

import torch

NAME = "minfer_counting"
"""The backend's name: give it to an engine as its compiler."""


class Compiles:
    """What the counting backend has seen since this was made: graphs, calls of them, and breaks of a graph."""

    name = NAME
    graphs_seen = calls_seen = 0

    def __init__(self) -> None:
        torch._dynamo.utils.counters["graph_break"].clear()
        self._graphs, self._calls = Compiles.graphs_seen, Compiles.calls_seen

    @property
    def graphs(self) -> int:
        """Graphs that were compiled."""
        return Compiles.graphs_seen - self._graphs

    @property
    def calls(self) -> int:
        """How often a compiled graph ran."""
        return Compiles.calls_seen - self._calls

    @property
    def breaks(self) -> list[str]:
        """Why a graph had to end in the middle of what was to be compiled."""
        return list(torch._dynamo.utils.counters["graph_break"])


def _count(graph: Any, inputs: Any) -> Callable[..., Any]:
    Compiles.graphs_seen += 1

    def run(*values: Any) -> Any:
        Compiles.calls_seen += 1
        return graph(*values)

    return run


if NAME not in torch._dynamo.list_backends():
    torch._dynamo.register_backend(_count, name=NAME)
