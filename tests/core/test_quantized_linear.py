"""QuantizedLinear: which kernel serves whom, one storage at a time, and what the memory of opaque ones really is."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from minfer.core.device import Device
from minfer.core.errors import CheckpointError
from minfer.phase6 import QuantizedLinear, find_scheme
from minfer.phase6.choice import KERNELS
from minfer.phase6.fbgemm import ENGINE, bare, has_vnni
from minfer.phase6.names import SCHEMES

FLOAT, BRAIN = torch.float32, torch.bfloat16
HAS_FBGEMM = ENGINE in torch.backends.quantized.supported_engines
x86 = pytest.mark.skipif(not HAS_FBGEMM, reason="FBGEMM is for x86")

CHOICES = [  # scheme, rounded rows, (out, in), dtype of rows, kernel
    ("fp16", False, (64, 512), FLOAT, "fbgemm fp16"),
    ("fp16", False, (64, 512), BRAIN, "fbgemm fp16"),
    ("fp16", False, (64, 512), torch.float16, "dequantize"),
    ("fp16", False, (64, 576), FLOAT, "fbgemm fp16"),
    ("fp16", False, (64, 77), FLOAT, "dequantize"),  # padded, it would be larger than in float32
    ("int8", False, (64, 512), FLOAT, "dequantize"),
    ("int8", False, (64, 512), BRAIN, "int8pack"),
    ("int8", False, (64, 77), BRAIN, "dequantize"),  # the operator reads beyond such a weight
    ("int8", True, (96, 1536), FLOAT, "fbgemm int8"),
    ("int8", True, (96, 1536), BRAIN, "fbgemm int8"),
    ("int8", True, (96, 576), FLOAT, "fbgemm int8"),  # padded by 78 %, but faster for few rows
    ("int8", True, (96, 200), FLOAT, "onednn int8"),  # FBGEMM would pad it to 512 columns
    ("int8", True, (13, 77), FLOAT, "onednn int8"),
    ("int8", True, (96, 1536), torch.float64, "dequantize"),
    ("int4", False, (64, 512), BRAIN, "int4pack"),
    ("int4", False, (64, 512), FLOAT, "dequantize"),
    ("int4", False, (30, 512), BRAIN, "dequantize"),
    ("int4", False, (64, 48), BRAIN, "dequantize"),
    ("fp8", True, (64, 512), FLOAT, "dequantize"),
]


def layer(scheme="int8", shape=(96, 576), rounded=False, bias=False, group=32):
    torch.manual_seed(1)
    linear = nn.Linear(shape[1], shape[0], bias=bias).requires_grad_(False)
    made = QuantizedLinear.from_linear(linear, find_scheme(scheme, group))
    made.use_rounded_rows(rounded)
    return made


@x86
@pytest.mark.parametrize(("scheme", "rounded", "shape", "dtype", "kernel"), CHOICES)
def test_the_kernel_depends_on_scheme_shape_and_dtype_and_gives_the_weight_back(scheme, rounded, shape, dtype, kernel):
    made = layer(scheme, shape, rounded)
    before = {name: part.clone() for name, part in made.parts().items()}
    weight = made.dequantize()
    made.pack(Device.get("cpu"), dtype)
    assert made.kernel.name == kernel
    after = made.parts()
    assert {name: part.dtype for name, part in after.items()} == {name: part.dtype for name, part in before.items()}
    assert all(torch.equal(after[name].double(), before[name].double()) for name in before)
    assert torch.equal(made.dequantize(), weight)
    made.pack(Device.get("cpu"), torch.float64)  # and again, out of the packed form
    assert made.kernel.name == "dequantize"
    assert torch.equal(made.dequantize(), weight)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [FLOAT, BRAIN])
def test_rows_that_the_packed_kernel_does_not_take_are_multiplied_all_the_same(scheme, dtype):
    made = layer(scheme, (96, 512), rounded=scheme == "int8")
    weight = made.dequantize()
    made.pack(Device.get("cpu"), dtype)
    x = torch.randn(3, 512, dtype=torch.float64)
    scale = x.abs().amax(-1, keepdim=True) / 127
    rows = (x / scale).round() * scale if scheme == "int8" else x
    torch.testing.assert_close(made(x), rows @ weight.T, rtol=0, atol=1e-9)
    assert made(x[:0].to(dtype)).shape == (0, 96)
    assert made.ran == {("dequantize", 3): 1, ("dequantize", 0): 1}


@x86
@pytest.mark.parametrize("scheme", ["fp16", "int8"])
def test_the_short_way_to_a_product_is_the_same_product_counted_for_any_rows_and_when_it_is_unpacked(scheme):
    made = layer(scheme, (64, 512), bias=True)
    made.pack(Device.get("cpu"), FLOAT)
    multiply = made.kernel.bind(made)
    for rows in (torch.randn(1, 512), torch.randn(3, 512), torch.randn(0, 512), torch.randn(2, 512).bfloat16()):
        made.ran.clear()
        expected = made.multiply(rows)
        counted = dict(made.ran)
        made.ran.clear()
        assert torch.equal(multiply(rows), expected)
        assert (multiply(rows).dtype, dict(made.ran)) == (
            rows.dtype,
            {key: 2 * count for key, count in counted.items()},
        )
    made.unpack()
    rows = torch.randn(2, 512)
    assert torch.equal(multiply(rows), made.multiply(rows))


def test_an_operator_without_a_shell_is_called_as_it_is():
    assert bare(SimpleNamespace(default=max)) is max
    assert bare(torch.ops.aten.neg)(torch.ones(2)).tolist() == [-1, -1]


def test_few_rows_run_in_the_packed_kernel_and_many_are_dequantised():
    made = layer("int8", (96, 512))
    made.pack(Device.get("cpu"), BRAIN)
    for count in (1, 4, 5, 100):
        made(torch.randn(count, 512, dtype=BRAIN))
    assert made.ran == {("int8pack", 1): 1, ("int8pack", 4): 1, ("dequantize", 5): 1, ("dequantize", 100): 1}


def test_moving_to_another_dtype_changes_the_bias_only():
    made = layer("int4", bias=True)
    parts = {name: part.clone() for name, part in made.parts().items()}
    made.double()
    assert made.bias.dtype == torch.float64
    assert {name: part.dtype for name, part in made.parts().items()} == {n: part.dtype for n, part in parts.items()}
    assert all(torch.equal(part, parts[name]) for name, part in made.parts().items())


def test_equal_weights_have_equal_codes_in_any_dtype_and_any_blocks():
    weight = torch.randn(2500, 77).bfloat16()
    for name in SCHEMES:
        scheme = find_scheme(name)
        want = scheme.quantize(weight.double())
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            made = scheme.encode(weight.to(dtype))
            assert all(torch.equal(made[part].double(), want[part].double()) for part in want)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(bad):
    linear = nn.Linear(8, 4)
    linear.weight.data[1, 2] = bad
    with pytest.raises(CheckpointError, match=r"^layers\.0\.q_proj holds NaN or infinity"):
        QuantizedLinear.from_linear(linear, find_scheme("int8"), "layers.0.q_proj")


def test_layers_that_do_not_match_are_not_merged():
    with pytest.raises(ValueError, match="one scheme and one width, not int8 of width 576, int4-g32 of width 576"):
        QuantizedLinear.merged([layer("int8"), layer("int4")])
    with pytest.raises(ValueError, match="1 of 2 layers to merge have a bias"):
        QuantizedLinear.merged([layer(bias=True), layer()])


@x86
def test_layers_packed_for_a_kernel_can_be_merged():
    one, two = layer("int8", (96, 200), rounded=True), layer("int8", (48, 200), rounded=True)
    want = torch.cat([one.dequantize(), two.dequantize()])
    for part in (one, two):
        part.pack(Device.get("cpu"), FLOAT)
    merged = QuantizedLinear.merged([one, two])
    assert torch.equal(merged.dequantize(), want)
    assert merged.quantize_rows


@x86
def test_packing_leaves_torch_as_it_was_and_warns_of_nothing(recwarn):
    before = torch.backends.quantized.engine
    for scheme, rounded in (("fp16", False), ("int8", True)):
        made = layer(scheme, (96, 1536), rounded)
        made.pack(Device.get("cpu"), FLOAT)
        made(torch.randn(2, 1536))
        made.dequantize()
    assert torch.backends.quantized.engine == before
    assert not [str(one.message) for one in recwarn if "quantize" in str(one.message)]


@x86
@pytest.mark.parametrize("width", [1536, 200], ids=["fbgemm", "onednn"])
def test_a_cpu_without_vnni_gets_rows_of_7_bits(monkeypatch, width):
    made = layer("int8", (96, width), rounded=True)
    made.pack(Device.get("cpu"), FLOAT)
    monkeypatch.setattr("minfer.phase6.fbgemm.has_vnni", lambda: False)
    monkeypatch.setattr("minfer.phase6.rounded_rows.has_vnni", lambda: False)
    x = torch.randn(3, width, dtype=torch.float64)
    scale = x.abs().amax(-1, keepdim=True) / 63
    want = ((x / scale).round() * scale) @ made.dequantize().T
    torch.testing.assert_close(made(x.float()).double(), want, rtol=0, atol=2e-3 * float(want.abs().max()))
    assert isinstance(has_vnni(), bool)


def test_where_torch_lacks_an_operator_the_layer_says_that_it_dequantises(monkeypatch):
    for kernel in KERNELS:
        monkeypatch.setattr(type(kernel), "serves", lambda *_: False)
    made = layer("int8", rounded=True)
    made.pack(Device.get("cpu"), FLOAT)
    made(torch.randn(2, 576))
    assert made.kernel.name == "dequantize"
    assert made.ran == {("dequantize", 2): 1}


MEASURE = """
import ctypes, sys, torch
from torch import nn
from minfer.core.device import Device
from minfer.phase6 import QuantizedLinear, find_scheme

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "a o s h hblkhd us fs uordblks f k".split()]

libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Info

def used():
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd

torch.set_num_threads(1)

def make(scheme, rounded, out, width):
    layer = QuantizedLinear.from_linear(nn.Linear(width, out, bias=False).requires_grad_(False), find_scheme(scheme))
    layer.use_rounded_rows(rounded)
    layer.pack(Device.get("cpu"), torch.float32)
    return layer

for case in eval(sys.argv[1]):
    make(*case)
    before = used()
    layers = [make(*case) for _ in range(4)]
    print((used() - before) / 4 / layers[0].nbytes, case, layers[0].kernel.name)
    del layers
"""
SHAPES = [
    ("int8", True, 960, 1536),
    ("int8", True, 960, 576),
    ("int8", True, 4800, 200),
    ("int8", False, 960, 576),
    ("int4", False, 960, 576),
    ("fp16", False, 960, 576),
]


@x86
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_the_bytes_that_a_layer_says_are_those_that_the_allocator_gave():
    command = [sys.executable, "-c", MEASURE, repr(SHAPES)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if "mallinfo2" in result.stderr:
        pytest.skip("this C library has no mallinfo2")
    lines = result.stdout.splitlines()
    assert len(lines) == len(SHAPES), result.stderr
    assert [line for line in lines if not 0.99 < float(line.split()[0]) < 1.01] == []


@pytest.mark.parametrize("dtype", [FLOAT, torch.float64, BRAIN, torch.float16])
def test_every_code_of_8_bits_is_the_number_that_torch_converts_it_to_bit_for_bit(dtype):
    bits = {BRAIN: torch.int16, torch.float16: torch.int16, FLOAT: torch.int32, torch.float64: torch.int64}[dtype]
    for name in ("fp8", "int8"):
        scheme = find_scheme(name)
        codes = torch.arange(256, dtype=torch.uint8).view(scheme.dtype).view(2, 128).t()
        made = scheme.numbers(codes, dtype)
        assert torch.equal(made.view(bits), codes.to(dtype).view(bits))
