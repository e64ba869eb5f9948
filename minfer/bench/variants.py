"""Variants: the engines of the benchmark table, each one change away from another; made where they can be."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minfer.bench.contestants import Contestant, EngineContestant, engine_class, watched
from minfer.bench.fast import Row, llama_cpp_row
from minfer.bench.part_clock import PartClock
from minfer.bench.transformers_peer import TransformersContestant
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.errors import DeviceError
from minfer.cost.cost_model import Setup
from minfer.phase10.cores import OwnShare

BLOCK = 16


@dataclass(frozen=True)
class Variant:
    """One row: which phase, on which weights, how many requests at once (`together`: as many as are allowed)."""

    name: str
    phase: int
    dtype: torch.dtype = torch.float32
    weights: str = "float32"  # a `WeightFormat`, as the cost model calls it
    together: bool = True
    cuda: str = ""  # why it needs a card; empty: it does not
    options: tuple[tuple[str, Any], ...] = ()
    ranks: int = 1

    @property
    def computed(self) -> str:
        """The dtype of rows and cache."""
        return str(self.dtype).removeprefix("torch.")

    def setup(self, config: ModelConfig) -> Setup:
        """As the cost model takes it."""
        return Setup(config, self.phase, self.weights, self.computed, self.ranks)


HALF, BRAIN = torch.float16, torch.bfloat16
VARIANTS = (
    Variant("FP32", 6, together=False),
    Variant("FP16", 6, HALF, "float16", together=False),
    Variant("BF16", 6, BRAIN, "bfloat16", together=False),
    Variant("INT8", 6, BRAIN, "int8", together=False, options=(("quantization", "int8"),)),
    Variant("INT4", 6, BRAIN, "int4-g32", together=False, options=(("quantization", "int4"),)),
    Variant("FP8", 6, BRAIN, "fp8", together=False, options=(("quantization", "fp8"),)),
    Variant("Batched", 4),
    Variant("Continuous batch", 5),
    Variant("Fused", 7),
    Variant("CUDA graph", 8, cuda="a CPU has no graphs"),
    Variant("Streams", 9, cuda="a CPU has no streams"),
    Variant("Multi-GPU", 10, options=(("tensor_parallel", 2),), ranks=2),
)
"""Weights first, one request at a time; then what serving changes, in float32."""


class ClockedContestant(EngineContestant):
    """An engine whose runs also tell the seconds of their parts, where the host can see them: not on a card."""

    @contextmanager
    def clocked(self) -> Iterator[dict[str, float]]:
        """Seconds by part: layers_s, head_s …; see `PartClock`."""
        parts: dict[str, float] = {}
        if self.engine.device.works_beside_host:
            yield parts
            return
        with PartClock(self.engine) as clock:
            before = clock.seconds
            yield parts
            parts |= {f"{name}_s": after - before[name] for name, after in clock.seconds.items()}


class RanksContestant(ClockedContestant):
    """An engine whose ranks are processes of their own: loaded, not handed a module; its cache stays between runs.

    Prefixes are not shared, so no run profits from what the one before left. Rank 0 has its share of this process's
    cores and threads only while it runs: the other contestants have them all.
    """

    def __init__(self, variant: Variant, model: str, device: Device, **options: Any) -> None:
        self.name, base = variant.name, engine_class(variant.phase)
        options |= {"dtype": variant.computed, "share_prefixes": False, "device": device, **dict(variant.options)}
        self.engine = base.load(model, **options)
        self.engine.__class__ = watched(base)  # the other ranks know the class by its own name
        for share in list(OwnShare.held):
            share.give_back()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """In rank 0's share."""
        share = OwnShare(self.engine.options.world)
        try:
            yield
        finally:
            share.give_back()

    def empty(self) -> None:
        """Nothing can be: all ranks would have to do it together."""

    def effective(self) -> dict[str, Any]:
        """As before, of rank 0; and how many ranks there are, and how they talk."""
        by = "NCCL" if self.engine.device.torch_device.type == "cuda" else "Gloo"
        return {**super().effective(), "ranks": f"{self.engine.options.world} ranks ({by})"}

    def close(self) -> None:
        """End the other ranks."""
        self.engine.close()


class Rows:
    """The rows of the table for one model on one device, and the peers. Weights are float32 before they are changed."""

    def __init__(self, module: nn.Module, model: str, folder: Path, scratch: Path, device: Device, batch: int) -> None:
        self.module, self.model, self.folder, self.scratch = module, model, folder, scratch
        self.device, self.batch = device, batch
        self.num_blocks = 0

    def all(self, num_blocks: int) -> list[Row]:
        """In the order of the table; `num_blocks` is the pool that the workload takes."""
        self.num_blocks = num_blocks
        return [*(Row(v.name, self._maker(v), self.why_not(v)) for v in VARIANTS), *self.peers()]

    def why_not(self, variant: Variant) -> str:
        """Why it cannot run here; empty if it can."""
        if find_spec(f"minfer.phase{variant.phase}") is None:
            return f"phase {variant.phase} is not built"
        on_card = self.device.torch_device.type == "cuda"
        if variant.cuda and not on_card:
            return f"no CUDA device: {variant.cuda}"
        if variant.ranks > 1 and on_card:
            try:
                Device.get(f"cuda:{(self.device.torch_device.index or 0) + variant.ranks - 1}")
            except DeviceError:
                return f"{variant.ranks} GPUs are needed"
        return ""

    def make(self, variant: Variant) -> EngineContestant:
        """The contestant of a variant; those that take their model apart get a copy of it."""
        batch = self.batch if variant.together else 1
        if variant.ranks > 1:
            return RanksContestant(variant, self.model, self.device, max_batch=batch, num_blocks=self.num_blocks)
        options: dict[str, Any] = {"max_batch": batch, **dict(variant.options)}
        if variant.phase >= 5:
            options |= {"num_blocks": self.num_blocks, "block_size": BLOCK}
        shared = variant.phase < 7 and variant.dtype == torch.float32 and not variant.options
        module = self.module if shared else copy.deepcopy(self.module).to(variant.dtype)
        return ClockedContestant(variant.phase, module, variant.name, **options)

    def peers(self) -> list[Row]:
        """What a user would take instead, on the same weights."""
        name = f"transformers fp32, batches of {self.batch}"
        absent = "" if find_spec("transformers") else "not installed: pip install transformers"
        where = self.device.torch_device
        made = [Row(name, lambda: TransformersContestant(self.folder, torch.float32, self.batch, name, where), absent)]
        return made + [llama_cpp_row(self.module, kind, self.scratch, self.device) for kind in ("f32", "q8_0")]

    def _maker(self, variant: Variant) -> Callable[[], Contestant]:
        return lambda: self.make(variant)
