"""Codes, and what they stand for: order, sign, axis, zero point, clamping, rounding, the last group, rows of zeros."""

import torch

from minfer.core.errors import CheckpointError
from tests.phase6.quantized import FP8, FP16, INT4, INT8, SCHEMES, quantized, rows, steps

SLACK = 1.05
"""A scale of 16 bits is off by up to 0.4 %, at up to 8 steps from the middle."""


def within(lab, layer, weight, allowed, code, did, hint):
    """Fail unless each dequantised weight is near enough to its own."""
    __tracebackhide__ = True
    off = (layer.dequantize() - weight).abs()
    worst = int((off - allowed).argmax())
    got = layer.dequantize().flatten()[worst].item()
    want, reach = weight.flatten()[worst].item(), allowed.flatten()[worst].item()
    lab.check(bool((off <= allowed).all()), code, did, f"{want:g} ± {reach:.2g} at place {worst}", f"{got:g}", hint)


def test_P6_01_low_nibble_first(engine_cls, lab):
    code, hint = "P6-01", "codes 1, 2 of neighbouring columns are the byte 0x21: the even column is the low nibble"
    order = torch.tensor([1, 2, 0, 15, *range(3, 15), *range(16)])
    weight = (order - 8).double()[None].repeat(3, 1)
    layer = quantized(engine_cls, lab, weight, **INT4)
    packed = layer.codes.detach()
    lab.equal((packed.dtype, tuple(packed.shape)), (torch.uint8, (3, 16)), code, "packed weights (3, 32)", hint)
    want = [low | high << 4 for low, high in order.view(-1, 2).tolist()]
    lab.equal(packed[1].tolist(), want, code, "packed the codes 1, 2, 0, 15, 3 …; looked at the bytes", hint)
    with torch.no_grad():
        layer.codes[0, 0] = 0x43
    lab.equal(layer.dequantize()[0, :2].tolist(), [-5.0, -4.0], code, "put the byte 0x43 for codes 3, 4", hint)


def test_P6_02_signs_survive(engine_cls, lab):
    code, hint = "P6-02", "code 0 is the least weight of a group, not zero; int8 codes are signed"
    whole = torch.arange(-8, 8).double().repeat(2)
    weight = torch.stack([whole, whole.flip(0), whole.roll(5)])
    layer = quantized(engine_cls, lab, weight, **INT4)
    lab.equal(layer.dequantize().tolist(), weight.tolist(), code, "quantised -8 … 7 to int4", hint)
    eight = torch.arange(-127, 128).double()[None].repeat(2, 1)
    eight[1] *= -1
    layer = quantized(engine_cls, lab, eight, **INT8)
    lab.equal(layer.dequantize().tolist(), eight.tolist(), code, "quantised -127 … 127 to int8", hint)
    x = rows(4, 255)
    lab.equal(layer(x).numpy(), (x @ eight.T).numpy(), code, "multiplied with -127 … 127", hint, tolerance=1e-9)


def test_P6_03_a_scale_for_each_channel(engine_cls, lab):
    code, hint = "P6-03", "the scale of an output channel is of a row of the weight (out, in), square or not"
    for shape in ((24, 24), (13, 77), (77, 13)):
        weight = rows(*shape) * torch.tensor([1.0, 10, 1000, 1e-6])[torch.arange(shape[0]) % 4][:, None]
        for options, levels in ((INT8, 127), (INT4, 15), (FP8, 16)):
            layer = quantized(engine_cls, lab, weight, **options)
            allowed = weight.abs().amax(-1, keepdim=True).expand_as(weight) / levels
            did = f"{options['quantization']}: quantised {shape} whose rows differ by powers of 10"
            within(lab, layer, weight, allowed, code, did, hint)
            x = rows(3, shape[1])
            want = (x @ layer.dequantize().T).numpy()
            lab.equal(layer(x).numpy(), want, code, f"{did}; multiplied", hint, tolerance=1e-8)


def test_P6_04_the_zero_point(engine_cls, lab):
    code, hint = "P6-04", "w = (code - 8) · scale + zero, at both ends of the grid; a group of one value has no width"
    spread = torch.linspace(2, 5, 32).double()
    weight = torch.stack([spread, -spread, spread - 3.5, torch.full((32,), 3.0), torch.full((32,), -3.0), spread - 2])
    layer = quantized(engine_cls, lab, weight, **INT4)
    within(lab, layer, weight, SLACK * steps(weight, 4, 32), code, "quantised positive and negative groups", hint)
    x = torch.ones(1, 32).double()
    want = (x @ layer.dequantize().T).numpy()
    lab.equal(layer(x).numpy(), want, code, "multiplied with ones, which shows a bias", hint, tolerance=1e-9)


def test_P6_05_outliers_are_clamped_and_nothing_wraps(engine_cls, lab):
    code, hint = "P6-05", "127 is the largest code, not 128; clamp before the cast: integers wrap, float8 gives NaN"
    weight = rows(6, 64)
    weight[0, 5], weight[1, 7], weight[2, 9], weight[3] = 1e5, -1e5, 7e4, weight[3] * 1e-6
    weight[4, 3] = weight[4].abs().max() * 1.0000001
    for options, reach in ((INT8, steps(weight, 8)), (INT4, steps(weight, 4, 32)), (FP8, weight.abs() / 16)):
        layer = quantized(engine_cls, lab, weight, **options)
        did = f"{options['quantization']}: quantised rows with outliers"
        finite = bool(layer.dequantize().isfinite().all())
        lab.check(finite, code, did, "finite weights", "NaN or infinity", hint)
        least = weight.abs().amax(-1, keepdim=True) / 448 / 512
        within(lab, layer, weight, SLACK * torch.maximum(reach, least.expand_as(weight)), code, did, hint)
    lab.raises(CheckpointError, lambda: quantized(engine_cls, lab, weight, **FP16), code, "fp16: a weight of 1e5", hint)
    layer, tiny = quantized(engine_cls, lab, weight[3:], **FP16), weight[3:]
    within(lab, layer, tiny, 1e-3 * tiny.abs() + 6e-8, code, "fp16: quantised tiny weights", hint)


def test_P6_06_to_the_nearest(engine_cls, lab):
    code, hint = "P6-06", "round, do not cut off: half a step at most, and no bias"
    weight = rows(40, 96)
    for options, half in ((INT8, steps(weight, 8)), (INT4, steps(weight, 4, 32))):
        layer = quantized(engine_cls, lab, weight, **options)
        did = f"{options['quantization']}: quantised normal numbers"
        within(lab, layer, weight, SLACK * half, code, did, hint)
        bias = ((layer.dequantize() - weight) / half).mean().abs().item()
        lab.check(bias < 0.06, code, f"{did}; averaged the error", "about 0 half steps", f"{bias:.3f}", hint)


def test_P6_07_the_last_group_is_shorter(engine_cls, lab):
    code, hint = "P6-07", "groups = ⌈in / group⌉; an odd width ends with an empty nibble"
    for width, group in ((77, 32), (77, 64), (77, 128), (33, 32), (1, 32), (130, 128)):
        weight = rows(5, width)
        weight[:, -(width % group) :] *= 50
        layer = quantized(engine_cls, lab, weight, **INT4, group_size=group)
        did = f"quantised width {width} in groups of {group}; the last group is larger"
        lab.equal(tuple(layer.dequantize().shape), (5, width), code, did, hint)
        within(lab, layer, weight, SLACK * steps(weight, 4, group) + 1e-12, code, did, hint)
        x = rows(3, width)
        want = (x @ layer.dequantize().T).numpy()
        lab.equal(layer(x).numpy(), want, code, f"{did}; multiplied", hint, tolerance=1e-8)


def test_P6_12_rows_of_zeros(engine_cls, lab):
    code, hint = "P6-12", "a scale of 0 divides nothing: the codes and the weight are 0"
    weight, bias = rows(4, 77), rows(4)
    weight[1], weight[2, :64] = 0, 0
    for options in (*SCHEMES, {**INT8, "quantize_rows": True}):
        layer = quantized(engine_cls, lab, weight, bias, **options)
        made, did = layer.dequantize(), f"{options}: quantised a row of zeros"
        lab.equal(made[1].abs().max().item() + made[2, :64].abs().max().item(), 0.0, code, did, hint)
        y = layer(torch.stack([torch.zeros(77).double(), rows(77)]))
        lab.equal(y[0].tolist(), bias.tolist(), code, f"{did}; multiplied a row of zeros", hint)
        lab.equal(y[1, 1].item(), bias[1].item(), code, f"{did}; multiplied", hint)
