"""Phase 2's change: `build_model` never holds two copies of the weights."""

import torch
from torch import Tensor, nn

from minfer.core.checkpoint import Checkpoint
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.models import skeleton
from minfer.phase1 import Engine as Phase1Engine
from minfer.phase1 import EngineOptions


class Engine(Phase1Engine):
    """Phase 1's loop over weights that went to the device one tensor at a time."""

    @classmethod
    def build_model(cls, checkpoint: Checkpoint, options: EngineOptions) -> nn.Module:
        """Checkpoint -> module on the device: at most the final weights and one stored tensor in memory."""
        device = Device.get(options.device)
        dtype, _ = device.dtype(options.dtype, checkpoint.dtype)
        model = skeleton(checkpoint)
        for name, stored in checkpoint.plan(model).items():
            place(model, name, stored.read(dtype, cls.home(name, checkpoint.config, options)))
        model.tie()
        model.make_tables()
        return model

    @classmethod
    def home(cls, name: str, config: ModelConfig, options: EngineOptions) -> torch.device:
        """Where the parameter `name` is to lie, a hook of later phases: on the device, every one."""
        return Device.get(options.device).torch_device


def place(model: nn.Module, name: str, weight: Tensor) -> None:
    """Put `weight` where the parameter `name` of `model` was only a shape."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))
