"""Phase 10's change: `build_model` takes this rank's shard only, `forward` is one of all ranks together."""

import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from minfer.core.batch import ForwardBatch
from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.errors import OptionsError
from minfer.core.models import open_model
from minfer.core.options import EngineOptions, at_least, make_options, option
from minfer.phase9 import StreamOptions as PreviousOptions
from minfer.phase9 import find_scheme
from minfer.phase10.launcher import launcher_of
from minfer.phase10.meeting import device_of
from minfer.phase10.quantized_rows import quantize_head, quantize_rows_together
from minfer.phase10.ranks import Ranks
from minfer.phase10.replicas import Replicas
from minfer.phase10.replicated import ReplicatedEngine
from minfer.phase10.shard import build_shard
from minfer.phase10.shard_plan import Place, ShardPlan
from minfer.phase10.step_message import Kind, StepMessage


@dataclass(frozen=True)
class ParallelOptions(PreviousOptions):
    """Phase 10's options."""

    tensor_parallel: int = option(1, "ranks that share each layer's work; each has some heads and channels")
    pipeline_parallel: int = option(1, "stages of layers, one after another, each on ranks of its own")
    replicas: int = option(1, "engines that answer one queue, each with ranks of its own")
    rank_timeout: float = option(15.0, "seconds without an answer after which a rank counts as hung, and all end")
    ranks: Any = option("auto", "who runs the other ranks: auto (torchrun's if there are any), processes, torchrun")  # noqa: RUF009

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "tensor_parallel", 1)
        at_least(self, "pipeline_parallel", 1)
        at_least(self, "replicas", 1)
        if not 0 < self.rank_timeout < float("inf"):
            raise OptionsError(f"rank_timeout = {self.rank_timeout}: give a number of seconds above 0")

    @property
    def world(self) -> int:
        """How many ranks there are, of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @classmethod
    def of_replica(cls, given: dict[str, Any], checked: "ParallelOptions", number: int) -> dict[str, Any]:
        """The options of one replica, of those `given`: its own devices, or its share of the host's memory."""
        device = device_of(checked.device, number * checked.world).torch_device
        own = {"device": checked.device, "memory_share": checked.memory_share / checked.replicas}
        if device.type != "cpu":
            own = {"device": str(device)}
        return {**given, **own, "replicas": 1}


class Engine(ReplicatedEngine):
    """A model that is dealt to several ranks. This process is rank 0: it alone schedules and samples."""

    Options = ParallelOptions
    options: ParallelOptions
    Plan: type[ShardPlan] = ShardPlan

    @classmethod
    def load(cls, model: str = "tiny", **options: Any) -> "Engine":
        """As before; with several ranks, the others are started too, and end with the engine.

        Under torchrun every rank calls this; only on rank 0 does it return, the others serve until rank 0 has ended,
        and leave by `SystemExit`. Raises `RankError` if another rank fails.
        """
        checked = make_options(cls.Options, options)
        if checked.replicas > 1:
            return cls.load_replicas(model, options, checked)
        if checked.world == 1:
            return super().load(model, **options)  # type: ignore[return-value]
        ranks = checked.ranks if isinstance(checked.ranks, Ranks) else None
        if ranks is None:
            config = open_model(model)[0].config
            for rank in range(checked.world):  # what cannot be dealt out is refused before anything is started
                cls.Plan(config, Place.of(rank, checked.tensor_parallel, checked.pipeline_parallel))
            ranks = launcher_of(checked.ranks).launch(cls, model, options, checked)
        with ranks.step():
            engine: Engine = super().load(model, **{**options, "device": ranks.device, "ranks": ranks})  # type: ignore[assignment]
        if not ranks.decides and checked.ranks is not ranks:
            engine.serve()
            raise SystemExit(0)
        return engine

    @classmethod
    def load_replicas(cls, model: str, options: dict[str, Any], checked: ParallelOptions) -> "Engine":
        """The engine of this process, to which the others belong; they end with it."""
        replicas = Replicas.start(cls, model, options, checked)
        with replicas.loading():
            engine = cls.load(model, **cls.Options.of_replica(options, checked, 0))
        engine.replicas = replicas
        weakref.finalize(engine, replicas.end)
        return engine

    @classmethod
    def build_model(cls, checkpoint: Checkpoint, options: EngineOptions) -> nn.Module:
        """Checkpoint -> this rank's shard of the module on its device."""
        ranks = getattr(options, "ranks", None)
        if not isinstance(ranks, Ranks):
            return super().build_model(checkpoint, options)
        device = Device.get(options.device)
        dtype, _ = device.dtype(options.dtype, checkpoint.dtype)
        plan = ranks.plan = cls.Plan(checkpoint.config, ranks.place)
        model = build_shard(checkpoint, plan, ranks, dtype, lambda name: cls.home(name, plan.config, options))
        asked = cast(ParallelOptions, options)
        ranks.begin(asked.max_batch, model.bytes_read)
        if asked.quantization is not None:
            scheme = find_scheme(asked.quantization, asked.group_size)
            quantize_rows_together(model, scheme, ranks.tensor)
            if asked.quantize_head:
                quantize_head(model, scheme)
        return model

    def allocate(self) -> None:
        """As before, and the same on all ranks. A stage that is not the last passes on all rows, not only `rows`."""
        options = self.options
        self.ranks = options.ranks if isinstance(options.ranks, Ranks) else None
        if self.ranks is None:
            if options.world > 1:
                raise OptionsError(
                    f"tensor_parallel = {options.tensor_parallel}, pipeline_parallel = {options.pipeline_parallel}: a "
                    "module that is made already cannot be dealt out: use Engine.load, where each rank reads its slice"
                )
            super().allocate()
            return
        weakref.finalize(self, self.ranks.close)
        if not self.ranks.place.is_last:
            self.model.register_forward_pre_hook(lambda _, inputs: inputs[:3])
        with self.ranks.equal_memory():
            super().allocate()

    def warmup(self) -> None:
        """As before, each rank by itself: none waits for another one's compiler."""
        with self.ranks.alone() if self.ranks else nullcontext():
            super().warmup()

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows, on rank 0."""
        if self.ranks is None:
            return super().forward(batch)
        with self.ranks.step():
            if self.ranks.decides:
                self.ranks.announce(StepMessage.of(batch, self.cache))
            out = super().forward(batch)
            return self.ranks.deliver(out, len(batch.rows), self.config.vocab_size)

    # ---- beyond the hooks ----------------------------------------------------------------------------------------

    @torch.inference_mode()
    def serve(self) -> None:
        """On a rank that is not the first: compute the steps that rank 0 announces, until it says that it is done."""
        assert self.ranks is not None
        while (message := self.ranks.next_step(self.device.torch_device)).kind is not Kind.END:
            self.forward(message.batch(self.whole([], []).attention, self.cache))
        self.close()

    def close(self) -> None:
        """End the other ranks and replicas; also done when the engine is collected, or the process ends."""
        if self.replicas is not None:
            self.replicas.end()
        if self.ranks is not None:
            self.ranks.close()
