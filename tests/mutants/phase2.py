"""Mistakes of phase 2: tensors that are missed, copied, misplaced or in the wrong dtype."""

import dataclasses
from contextlib import suppress

import torch
from safetensors import safe_open
from torch import nn

from minfer.core.device import Device
from minfer.core.errors import CheckpointError
from minfer.core.models import model_class
from minfer.phase1 import Engine as Phase1Engine
from minfer.phase2 import Engine
from minfer.phase2.engine import place
from tests.mutants import probes
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=2)
plant = MUTANTS.plant

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def wanted(checkpoint, options):
    return Device.get(options.device).dtype(options.dtype, checkpoint.dtype)[0]


class ByHand(Engine):
    """Reads what `files(checkpoint)` hold, by name, into a random model, and complains of nothing."""

    @classmethod
    def build_model(cls, checkpoint, options):
        torch.manual_seed(0)
        model = model_class(checkpoint.config)(checkpoint.config).to(wanted(checkpoint, options))
        parameters = dict(model.named_parameters())
        for file in cls.files(checkpoint):
            with safe_open(file, "pt") as opened:
                for key in opened.keys():  # noqa: SIM118
                    name = key.removeprefix(model.file_prefix)
                    tensor = opened.get_tensor(key)
                    tensor = tensor.t() if model.stored_transposed(name) else tensor
                    if name in parameters and parameters[name].shape == tensor.shape:
                        parameters[name].data.copy_(tensor)
        return model

    @classmethod
    def files(cls, checkpoint):
        return sorted({entry.file for entry in checkpoint.entries.values()})


@plant("P2-01", probes.loaded(change={Q_PROJ: None}))
class NotStrict(ByHand):
    pass


class Rebuilt(Engine):
    """Phase 2 with something done to the model that it built."""

    @classmethod
    def build_model(cls, checkpoint, options):
        model = super().build_model(checkpoint, options)
        cls.change(model)
        return model


@plant("P2-02", probes.loaded("tied", look=lambda e: e.model.lm_head.weight is e.model.embed_tokens.weight))
class HeadCopied(Rebuilt):
    @staticmethod
    def change(model):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


@plant("P2-02", probes.loaded("tied"))
class HeadNeverTied(Rebuilt):
    @staticmethod
    def change(model):
        if model.config.tie_word_embeddings:
            torch.manual_seed(0)
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))


@plant("P2-05", probes.loaded(shards=2))
class LastShardOnly(ByHand):
    @classmethod
    def files(cls, checkpoint):
        return super().files(checkpoint)[-1:]


def beside_an_old_file(engine_cls, lab):
    model = lab.model()
    folder, stale = model.save(lab.new_folder(), shards=2), lab.new_folder()
    model.save(stale, change={name: tensor * 0 for name, tensor in model.weights.items()})
    (stale / "model.safetensors").rename(folder / "old.safetensors")
    return lab.run(lab.load(engine_cls, folder), [5, 6, 7], lab.params(4))[0].token_ids


@plant("P2-05", beside_an_old_file)
class EveryFileInTheFolder(ByHand):
    @classmethod
    def files(cls, checkpoint):
        return sorted(checkpoint.folder.glob("*.safetensors"))


def reads(engine_cls, lab):
    engine = lab.engine(engine_cls, lab.model())
    with lab.host_reads() as counted:
        engine.generate([5, 6, 7], lab.params(3))
    return counted.total


class Peeking:
    def __init__(self, inner, peek):
        self.inner, self.peek = inner, peek

    def __call__(self, q, k, v):
        self.peek(q)
        return self.inner(q, k, v)


@plant("P2-07", reads)
class ItemInTheLayer(Engine):
    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.attention = [Peeking(one, lambda q: q.sum().item()) for one in batch.attention]
        return batch


@plant("P2-07", reads)
class CpuInTheLayer(Engine):
    def prepare(self, sequences):
        batch = super().prepare(sequences)
        batch.attention = [Peeking(one, lambda q: q.cpu()) for one in batch.attention]
        return batch


@plant("P2-07", reads)
class IfOfATensor(Engine):
    def sample(self, logits, sequences):
        if logits.isnan().any():
            raise ValueError("NaN")
        return super().sample(logits, sequences)


@plant("P2-08", probes.loaded("gpt2"))
class SquareNotTransposed(Engine):
    @classmethod
    def build_model(cls, checkpoint, options):
        model = super().build_model(checkpoint, options)
        for name, parameter in model.named_parameters():
            if model.stored_transposed(name) and parameter.shape[0] == parameter.shape[1]:
                parameter.data = parameter.data.t().contiguous()
        return model


@plant("P2-08", probes.loaded("biased"))
class BiasesLeftOut(Rebuilt):
    @staticmethod
    def change(model):
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.bias"):
                parameter.data.zero_()


class OtherDtype(Engine):
    """Phase 2 that builds for options with another dtype."""

    @classmethod
    def build_model(cls, checkpoint, options):
        return super().build_model(checkpoint, dataclasses.replace(options, dtype=cls.instead(options.dtype)))


def dtypes(engine):
    return {parameter.dtype for parameter in engine.model.parameters()}


@plant("P2-09", probes.loaded(look=dtypes, dtype="bfloat16"))
class AlwaysFloat32(OtherDtype):
    @staticmethod
    def instead(dtype):
        return "float32"


@plant("P2-09", probes.loaded(look=dtypes, dtype="bfloat16"))
class AsStored(OtherDtype):
    @staticmethod
    def instead(dtype):
        return "auto"


@plant("P2-09", lambda cls, lab: cls.load(str(lab.model().save(lab.new_folder())), dtype="float64").model.norm.weight)
class RoundedOnTheWay(Rebuilt):
    @staticmethod
    def change(model):
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16).to(parameter.dtype)


def peak(engine_cls, lab):
    folder = lab.model().save(lab.new_folder())
    with lab.live_bytes() as memory:
        lab.load(engine_cls, folder, dtype="bfloat16")
    return memory.peak


@plant("P2-10", peak)
class WholeStateDict(Engine):
    @classmethod
    def build_model(cls, checkpoint, options):
        model = model_class(checkpoint.config)(checkpoint.config).to(wanted(checkpoint, options))
        state = {name: stored.read() for name, stored in checkpoint.plan(model).items()}
        model.load_state_dict(state, strict=not checkpoint.config.tie_word_embeddings)
        return model


@plant("P2-10", peak)
class BuiltInFloat32(Engine):
    @classmethod
    def build_model(cls, checkpoint, options):
        model = model_class(checkpoint.config)(checkpoint.config)
        for name, stored in checkpoint.plan(model).items():
            place(model, name, stored.read(torch.float32))
        model.tie()
        return model.to(wanted(checkpoint, options))


@plant("P2-11", probes.loaded("yarn"))
class TablesLeftOnMeta(Rebuilt):
    @staticmethod
    def change(model):
        if hasattr(model, "rotary"):
            model.rotary = model.rotary.to("meta")


def peak_of_a_refusal(engine_cls, lab):
    folder = lab.model().save(lab.new_folder(), change={Q_PROJ: None})
    with lab.live_bytes() as memory, suppress(CheckpointError):
        lab.load(engine_cls, folder, dtype="float64")
    return memory.peak


@plant("P2-12", peak_of_a_refusal)
class MadeBeforeItIsCompared(Engine):
    """As the phase before does."""

    build_model = vars(Phase1Engine)["build_model"]
