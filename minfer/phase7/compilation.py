"""Compilation: what `torch.compile` makes of the region between two attentions, counted, and why it could not."""

import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from minfer.core.device import Device
from minfer.core.errors import MinferWarning, OptionsError

AUTO, EAGER = "auto", "none"
"""Values of the option `compiler`: inductor, if the model is large enough to be worth it; do not compile."""

WORTHWHILE = 2**24
"""Parameters from which on compiling, some seconds, pays: a smaller model's whole answer takes no longer."""

INDUCTOR: dict[str, Any] = {
    "cpp.enable_kernel_profile": True,  # what it writes for a CPU has names in a trace; else that takes no time
    "size_asserts": False,
}
"""Inductor's settings. Its checks that an index is within the pool stay on: a write outside would corrupt memory."""

INSTALL = {
    "cpu": "install g++ or clang (Debian: apt install g++; macOS: xcode-select --install)",
    "cuda": "install Triton and a C compiler (pip install triton; apt install gcc)",
}


class Compilation:
    """One `torch.compile` backend at work. `graphs` counts the graphs that it compiled: few, whatever the lengths.

    `problem`: why nothing is compiled; empty if it is. Raises `OptionsError` for an unknown backend.
    """

    def __init__(self, backend: str, parameters: int) -> None:
        self.graphs = 0
        self.problem = "as asked" if backend == EAGER else ""
        if backend == AUTO:
            backend = "inductor"
            if parameters < WORTHWHILE:
                self.problem = f"{parameters:,} parameters are too few to be worth the seconds"
        if not self.problem:
            from torch._dynamo.exc import InvalidBackend  # half of a cold start, so only where something is compiled

            try:
                self.make = torch._dynamo.lookup_backend(backend)
            except InvalidBackend as error:
                known = ", ".join([AUTO, EAGER, "eager", *torch.compiler.list_backends()])
                raise OptionsError(f"compiler {backend!r} is unknown: use one of {known}") from error
        self.backend = backend

    def compiled(self, function: Any, guarded_by: str = "") -> Callable[..., Any]:
        """`function` compiled whole, with every size of its tensors a variable; as it is where that does not work.

        It gets a code object of its own, since Dynamo keeps graphs, and counts them against its limit, per code object.
        `guarded_by` names the one argument whose dtype and device Dynamo still checks at each call. The caller promises
        that nothing else differs from the first call but sizes above 1. Checking every part of a model each time would
        take longer than a small region itself.
        """
        if self.problem:
            return function
        own = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
        options: dict[str, Any] | None = {"guard_filter_fn": _only(guarded_by)} if guarded_by else None
        return torch.compile(own, backend=self._counted, dynamic=True, fullgraph=True, options=options)

    def _counted(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        if self.backend != "inductor":
            return self.make(graph, inputs)
        from torch._inductor import config as inductor

        with inductor.patch(INDUCTOR):
            return self.make(graph, inputs)

    def attempt(self, run: Callable[[], None], device: Device) -> None:
        """Run what compiles. Without a compiler: warn, and set `problem`. An error of the region itself raises.

        Meanwhile Dynamo takes floats, such as a norm's epsilon, for constants, and two sizes for two variables even if
        they happen to be equal.
        """
        from torch._dynamo.exc import BackendCompilerFailed
        from torch.fx.experimental import _config

        try:
            shapes: Any = _config  # which a type checker does not see to be a config
            with torch._dynamo.config.patch(specialize_float=True), shapes.patch(use_duck_shape=False):
                run()
        except BackendCompilerFailed as error:
            self.problem = str(error).splitlines()[0]
            cure = f"{INSTALL[device.torch_device.type]}, or load with compiler=none"
            warnings.warn(f"phase 7 runs fused but not compiled: {self.problem}; {cure}", MinferWarning, stacklevel=2)

    def __str__(self) -> str:
        return f"not compiled: {self.problem}" if self.problem else f"{self.backend}, {self.graphs} graphs"


def _only(argument: str) -> Callable[[Any], list[bool]]:
    """For Dynamo: of the conditions under which it may use a graph, check what kind of tensor the argument is."""
    return lambda guards: [guard.guard_type == "TENSOR_MATCH" and guard.name == argument for guard in guards]
