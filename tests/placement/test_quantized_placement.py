"""Quantised layers on a fake card: each kernel that a card has takes what the layer gives it, and nothing is copied."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from minfer.core.config import ModelConfig
from minfer.core.models import skeleton
from minfer.core.stored_quantization import StoredQuantization
from minfer.phase6 import Engine, packed_mm, rounded_rows
from minfer.phase6.stored import quantized_skeleton
from tests.parity.families import FAMILIES
from tests.placement.fake_cuda import FakeGPU, fake_cuda, place

LARGE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_attention_heads": 4, "vocab_size": 160}

KERNELS = [  # scheme, rounded rows, dtype of rows, capability, kernel
    ("fp16", False, torch.float16, (9, 0), "dequantize"),
    ("int8", False, torch.bfloat16, (9, 0), "int8pack"),
    ("int8", False, torch.float32, (9, 0), "dequantize"),
    ("int8", True, torch.bfloat16, (8, 0), "int_mm"),
    ("int8", True, torch.float16, (9, 0), "int_mm"),
    ("int4", False, torch.bfloat16, (8, 0), "int4pack"),
    ("int4", False, torch.bfloat16, (7, 5), "dequantize"),
    ("int4", False, torch.float32, (9, 0), "dequantize"),
    ("fp8", True, torch.bfloat16, (8, 9), "scaled_mm"),
    ("fp8", True, torch.bfloat16, (8, 0), "dequantize"),
    ("fp8", False, torch.bfloat16, (9, 0), "dequantize"),
]


class Card(FakeGPU):
    """A card of some compute capability."""

    def __init__(self, capability):
        self.given = capability

    @property
    def capability(self):
        return self.given


@pytest.fixture(autouse=True)
def operators(monkeypatch):
    """Shapes of operators are known to every build of torch, also to one without their CUDA kernels."""
    for module in (packed_mm, rounded_rows):
        monkeypatch.setattr(module, "available", lambda name, device: hasattr(torch.ops.aten, name))


def on_meta(scheme, dtype, **facts):
    """A quantised model without values; made outside of fake mode, in which modules cannot change their dtype."""
    config = ModelConfig.from_dict({**FAMILIES["llama-grouped"], **facts})
    stored = ModelConfig(**{**vars(config), "quantization": StoredQuantization(scheme)})
    return quantized_skeleton(SimpleNamespace(config=stored)).to(dtype)


def engine_of(model, rounded, capability):
    return Engine(place(model), None, Engine.Options(device=Card(capability), quantize_rows=rounded))


@pytest.mark.parametrize(("scheme", "rounded", "dtype", "capability", "kernel"), KERNELS)
def test_a_quantised_step_stays_on_the_card(scheme, rounded, dtype, capability, kernel):
    model = on_meta(scheme, dtype, **LARGE)
    with fake_cuda() as watch:
        engine = engine_of(model, rounded, capability)
        chosen = {name: len(use.layers) for name, use in engine.kernels.items()}
        assert chosen == {kernel: 7 * engine.config.num_layers}
        watch.copies.clear()
        for count in (1, 5, 16, 40):
            batch = engine.whole(list(range(3, 3 + count)), [])
            watch.copies.clear()
            logits = engine.forward(batch)
            assert isinstance(logits, FakeTensor)
            assert (logits.device.type, logits.dtype, tuple(logits.shape)) == ("cuda", dtype, (1, 160))
            assert not watch.copies, f"a step copies between host and card: {watch.copies}"
        ran = {name: set(use.ran) for name, use in engine.kernels.items()}
        few = {1, 5, 16} if kernel == "int8pack" else {1, 5, 16, 40}
        assert ran[kernel] == few


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_odd_sizes_are_dequantised_on_the_card(scheme):
    odd = {"hidden_size": 77, "intermediate_size": 91, "head_dim": 14, "num_attention_heads": 9}
    model = on_meta(scheme, torch.bfloat16, num_key_value_heads=3, **odd)
    with fake_cuda():
        engine = engine_of(model, scheme != "int4", (9, 0))
        assert set(engine.kernels) == {"dequantize"}
        batch = engine.whole([3, 4, 5], [])
        assert engine.forward(batch).device.type == "cuda"


def test_skeletons_hold_no_memory():
    config = ModelConfig.from_dict(FAMILIES["llama-grouped"])
    stored = ModelConfig(**{**vars(config), "quantization": StoredQuantization("int4")})
    model = quantized_skeleton(SimpleNamespace(config=stored))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert len(list(model.parameters())) > len(list(skeleton(SimpleNamespace(config=config)).parameters()))


CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card: what its kernels compute")


@CARD
@pytest.mark.gpu
@pytest.mark.parametrize(("scheme", "rounded", "dtype", "capability", "kernel"), KERNELS)
def test_a_real_card_computes_what_the_weight_stands_for(scheme, rounded, dtype, capability, kernel, monkeypatch):
    from torch import nn

    from minfer.core.device import Device
    from minfer.phase6 import QuantizedLinear, find_scheme

    monkeypatch.undo()  # the operators that this build really has
    device = Device.get("cuda")
    linear = nn.Linear(128, 256, bias=False).requires_grad_(False).to(device.torch_device)
    layer = QuantizedLinear.from_linear(linear, find_scheme(scheme))
    layer.use_rounded_rows(rounded)
    weight = layer.dequantize()
    layer.pack(device, dtype)
    assert torch.equal(layer.dequantize(), weight)
    for count in (1, 16, 33):
        x = torch.randn(count, 128, device=device.torch_device, dtype=dtype)
        codes, scale = layer.scheme.rounded_rows(x) if rounded else (x, 1)
        want = (codes.double() * scale) @ weight.T
        off = (layer(x).double() - want).abs().max() / want.abs().max()
        assert off < 2e-2, f"{layer.kernel.name}, {count} rows: off by {off:.3g}"
