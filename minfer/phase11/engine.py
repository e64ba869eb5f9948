"""Phase 11's change: `step` is observed. The hooks within say which part of which step begins, and change nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minfer.core.batch import ForwardBatch
from minfer.core.options import option
from minfer.core.prompts import Params, Prompts
from minfer.core.sequence import Sequence
from minfer.phase10 import Engine as PreviousEngine
from minfer.phase10 import ParallelOptions as PreviousOptions
from minfer.phase11.limits import Limits, preset
from minfer.phase11.memory import MemoryParts
from minfer.phase11.observer import Observer
from minfer.phase11.profile import Profile


@dataclass(frozen=True)
class ProfilingOptions(PreviousOptions):
    """Phase 11's options."""

    step_log: str | None = option(None, "file that gets a JSON line for each step; the last 2048 are kept anyway")

    @classmethod
    def of_replica(cls, given: dict[str, Any], checked: PreviousOptions, number: int) -> dict[str, Any]:
        """As before; each replica's steps are in a file of its own: steps.jsonl, steps.1.jsonl …"""
        own = super().of_replica(given, checked, number)
        if number and own.get("step_log") is not None:
            path = Path(own["step_log"])
            own["step_log"] = str(path.with_name(f"{path.stem}.{number}{path.suffix}"))
        return own


class Engine(PreviousEngine):
    """Measures every step, and lets torch.profiler look at any run."""

    Options = ProfilingOptions
    options: ProfilingOptions

    def allocate(self) -> None:
        """As before; whatever is compiled and recorded now is `warmup_s`, and no request's."""
        started = self.device.clock()
        super().allocate()
        self.device.synchronize()
        self.warmup_s = self.device.clock() - started
        self.observer = Observer(self)

    def step(self) -> list[Sequence]:
        """As before, written down."""
        with self.stepping, self.observer.turn(self) as advanced:
            advanced += super().step()
        return advanced

    def launch(self, sequences: list[Sequence]) -> tuple[list[Sequence], Tensor]:
        """As before."""
        with self.observer.launch(self, sequences) as observed:
            observed.drawing, token_ids = super().launch(sequences)
        return observed.drawing, token_ids

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows."""
        with self.observer.forward():
            return super().forward(batch)

    def touch_down(self) -> list[Sequence]:
        """As before."""
        with self.observer.landing(self) as advanced:
            advanced += super().touch_down()
        return advanced

    # ---- what was seen -------------------------------------------------------------------------------------------

    def step_lines(self) -> list[dict[str, Any]]:
        """The last steps, one after another, as plain JSON values; see `StepFacts`."""
        with self.stepping:
            return list(self.observer.log.lines())

    def requests(self) -> list[dict[str, Any]]:
        """The last requests that finished, as plain JSON values; see `Metrics`."""
        with self.stepping:
            return self.observer.metrics.rows()

    def metrics(self, limits: Limits | str | None = None) -> dict[str, Any]:
        """The figures of those requests, as plain JSON values; see `Metrics.figures`.

        `limits`, for goodput: `Limits` or a name in `PRESETS`. Raises `OptionsError` for another name.
        """
        limits = preset(limits) if isinstance(limits, str) else limits
        with self.stepping:
            return {**self.observer.metrics.figures(limits), "warmup_s": self.warmup_s}

    def forget(self) -> None:
        """Begin log, its file and figures anew: what follows is not mixed with requests that were there to warm up."""
        with self.stepping:
            self.observer = Observer(self)

    def memory(self) -> MemoryParts:
        """What the engine's memory is taken by, but for activations, which only `profile` measures."""
        return MemoryParts.of(self)

    def profile(self, prompts: Prompts, params: Params = None, trace: str | Path | None = None) -> Profile:
        """`generate` under torch.profiler, with a range for each step and each of its parts; `trace`: a file.

        In the file the ranges stand over counter tracks of tokens, requests and blocks.
        Raises what `generate` raises before anything is run; what ends the run later is in the profile's `error`.
        """
        sequences = self.sequences(prompts, params)
        with self.observer.tracing():
            return Profile.of(self, sequences, Path(trace) if trace is not None else None)
