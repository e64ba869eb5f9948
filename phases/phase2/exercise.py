"""Phase 2, GPU loading: the starter. Each task is a `raise NotImplementedError` to replace.

Task 1, 35 points. A weight in its place: place
Task 2, 65 points. One tensor after another: Engine.build_model

Copy it (`minfer start 2`), write, then look what is right: `minfer check 2`, or
`pytest tests/phase2 --engine work/phase2.py`. Hints: `minfer hint 2 1`.
It builds on the reference of phase 1; to build on your own, import that instead.
"""

import torch
from torch import Tensor, nn

from minfer.core.checkpoint import Checkpoint
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.models import skeleton
from minfer.phase1 import Engine as Phase1Engine
from minfer.phase1 import EngineOptions

# ==== phase2/engine.py ==============================================================================================
# Phase 2's change: `build_model` never holds two copies of the weights.


class Engine(Phase1Engine):
    """Phase 1's loop over weights that went to the device one tensor at a time."""

    @classmethod
    def build_model(cls, checkpoint: Checkpoint, options: EngineOptions) -> nn.Module:
        """Checkpoint -> module on the device: at most the final weights and one stored tensor in memory."""
        raise NotImplementedError("P2 task 2: Engine.build_model")

    @classmethod
    def home(cls, name: str, config: ModelConfig, options: EngineOptions) -> torch.device:
        """Where the parameter `name` is to lie, a hook of later phases: on the device, every one."""
        return Device.get(options.device).torch_device


def place(model: nn.Module, name: str, weight: Tensor) -> None:
    """Put `weight` where the parameter `name` of `model` was only a shape."""
    raise NotImplementedError("P2 task 1: place")
