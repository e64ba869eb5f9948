"""Layers: whatever kernel runs multiplies with the weight that the layer stands for; nothing is held twice."""

import torch
from torch import nn

from tests.phase6.quantized import FP8, INT4, INT8, SCHEMES, Holder, layers, linear, quantized, rows

SHAPES = ((48, 64), (13, 77), (96, 1536), (16, 128))
NOISE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""How far a product may be off, by the dtype of its rows, in parts of the largest result."""


def rounded(x, largest=127):
    """Each row of x at the nearest of the multiples of its own scale."""
    scale = x.abs().amax(-1, keepdim=True) / largest
    return torch.where(scale > 0, (x / scale).round() * scale, 0)


def test_P6_11_long_sums_do_not_overflow(engine_cls, lab):
    code, hint = "P6-11", "127 · 127 · 4096 needs 32 bits: accumulate in int32 or float32, never in 8 or 16 bits"
    weight = torch.full((16, 4096), 127.0)
    weight[1] *= -1
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for options in (INT8, {**INT8, "quantize_rows": True}, INT4):
            layer = quantized(engine_cls, lab, weight.to(dtype), **options)
            for count in (1, 20):
                y = layer(torch.full((count, 4096), 127.0, dtype=dtype)).double()
                exact = 127.0 * 127 * 4096
                want = torch.full((count, 16), exact).double()
                want[:, 1] *= -1
                off = ((y - want).abs() / exact).max().item()
                did = f"{options}, {count} rows of {dtype}: summed 4096 products of 127 and 127"
                allowed = max(NOISE[dtype], 5e-3 if options is INT4 else 0)  # 127 need not be on an int4 grid
                lab.check(off <= allowed, code, did, f"±{exact:g}", f"off by {off:.2g} of it", hint)


def test_P6_21_every_kernel_multiplies_with_the_weight(engine_cls, lab):
    code, hint = "P6-21", "rows keep their dtype; a packed weight is the same weight; leading dimensions stay"
    for shape in SHAPES:
        weight, bias = rows(*shape).float() / shape[1] ** 0.5, rows(shape[0], seed=1).float()
        for options in SCHEMES:
            plain = quantized(engine_cls, lab, weight.double(), **options).dequantize()
            for dtype, noise in NOISE.items():
                layer = quantized(engine_cls, lab, weight.to(dtype), bias.to(dtype), **options)
                stands = layer.dequantize()
                did = f"{options['quantization']} {shape} for rows of {dtype}"
                if dtype in (torch.float64, torch.float32):
                    same = torch.equal(stands, plain)
                    lab.check(same, code, f"{did}; dequantised it", "the weight of the float64 engine", "another", hint)
                for lead in ((1,), (3,), (2, 17), ()):
                    x = rows(*lead, shape[1], seed=2, dtype=dtype)
                    y = layer(x)
                    lab.equal((y.dtype, tuple(y.shape)), (dtype, (*lead, shape[0])), code, f"{did}: {lead}", hint)
                    want = x.double() @ stands.T + layer.bias.double()
                    off = ((y.double() - want).abs().max() / want.abs().max()).item()
                    lab.check(off <= noise, code, f"{did}: {lead}", f"within {noise:g}", f"off by {off:.2g}", hint)


def test_P6_22_each_row_by_its_own_scale(engine_cls, lab):
    code, hint = "P6-22", "a row's scale is its own largest number's: who else is in the batch must not matter"
    for shape in SHAPES:
        weight = rows(*shape).float() / shape[1] ** 0.5
        x = rows(5, shape[1], seed=2) * torch.tensor([1.0, 100, 1e-4, 0, 1])[:, None]
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            layer = quantized(engine_cls, lab, weight.to(dtype), **INT8, quantize_rows=True)
            y, given = layer(x.to(dtype)), x.to(dtype)
            did = f"int8 {shape}, five rows of {dtype} of very different size, rounded too"
            alone = torch.cat([layer(row[None]) for row in given])
            size = y.double().abs().amax(-1, keepdim=True).clamp_min(1e-30)
            ours, theirs = (alone.double() / size).numpy(), (y.double() / size).numpy()
            lab.equal(ours, theirs, code, f"{did}; each alone", hint, what="row", tolerance=NOISE[dtype])
            if dtype is torch.bfloat16:
                continue
            want = rounded(given.double()) @ layer.dequantize().T
            off = ((y.double() - want).abs().amax(-1) / want.abs().amax(-1).clamp_min(1e-30)).max().item()
            allowed = 1e-9 if dtype is torch.float64 else 1e-3  # where float32 rounds a tie to the other side
            lab.check(
                off <= allowed, code, did, f"round(x / scale) · scale within {allowed:g}", f"off by {off:.2g}", hint
            )


def test_P6_23_memory_falls(engine_cls, lab):
    code, hint = "P6-23", "pack two int4 codes to a byte; drop the float weight once it is quantised"
    for options, most in ((INT8, 1 + 4 / 96), (INT4, 0.5 + 4 / 32), (FP8, 1 + 4 / 96), ({"quantization": "fp16"}, 2)):
        weight = rows(64, 96)
        for dtype in (torch.float64, torch.bfloat16):
            layer = quantized(engine_cls, lab, weight.to(dtype), **options)
            did = f"{options['quantization']}: quantised (64, 96) of {dtype}"
            lab.check(
                layer.nbytes <= 1.01 * most * 64 * 96, code, did, f"{most:.3f} bytes each", f"{layer.nbytes / 6144}"
            )
            if dtype is torch.float64:
                held = sum(parameter.nbytes for parameter in layer.parameters())
                lab.equal(held, layer.nbytes, code, f"{did}; added up its parameters", hint)
            kept = [name for name, value in vars(layer).items() if isinstance(value, torch.Tensor | nn.Linear)]
            inner = [name for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
            lab.equal(kept + inner, [], code, f"{did}; looked for other tensors", hint)


def test_P6_24_merged_layers_keep_their_codes(engine_cls, lab):
    code, hint = "P6-24", "scales belong to channels: stack codes and scales along the output"
    weights, biases = [rows(out, 77, seed=out) * out for out in (5, 12, 7)], [rows(out) for out in (5, 12, 7)]
    for options in SCHEMES:
        parts = [quantized(engine_cls, lab, w, b, **options) for w, b in zip(weights, biases, strict=True)]
        merged = type(parts[0]).merged(parts)
        whole = quantized(engine_cls, lab, torch.cat(weights), torch.cat(biases), **options)
        did = f"{options['quantization']}: merged layers of 5, 12 and 7 channels"
        lab.equal(merged.out_features, 24, code, did, hint)
        want = torch.cat([part.dequantize() for part in parts])
        for made, how in ((merged, "their codes"), (whole, "before quantising")):
            same = torch.equal(made.dequantize(), want)
            lab.check(same, code, f"{did}: {how}", "the same weights, one after another", "others", hint)
        x = rows(4, 77)
        apart = torch.cat([part(x) for part in parts], dim=-1)
        lab.equal(merged(x).numpy(), apart.numpy(), code, f"{did}; multiplied", hint, tolerance=1e-8)


def test_P6_25_it_says_which_kernel_ran(engine_cls, lab):
    code, hint = "P6-25", "count each product under the kernel that ran it, with its rows"
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for options in (*SCHEMES, {**INT8, "quantize_rows": True}):
            holder = Holder(lab.config(), a=linear(rows(48, 64).to(dtype)), b=linear(rows(13, 77).to(dtype)))
            engine = lab.engine(engine_cls, holder, None, **options)
            for count in (3, 40, 3):
                engine.model.a(rows(count, 64, dtype=dtype))
            engine.model.b(rows(5, 77, dtype=dtype))
            did = f"{options} on {dtype}: multiplied 3, 40, 3 rows with a, 5 with b"
            chosen = sorted(name for use in engine.kernels.values() for name in use.layers)
            lab.equal(chosen, ["a", "b"], code, f"{did}; the layers that kernels serve", hint)
            counted = {}
            for use in engine.kernels.values():
                for number, times in use.ran.items():
                    counted[number] = counted.get(number, 0) + times
            lab.equal(dict(sorted(counted.items())), {3: 2, 5: 1, 40: 1}, code, f"{did}; rows: times", hint)


def test_P6_09_only_linear_layers_are_quantised(engine_cls, lab):
    code, hint = "P6-09", "embeddings, norms, biases and the head stay as they are; a tied head stays tied"
    for family, embedding in (("tied", "embed_tokens"), ("llama", "embed_tokens"), ("gpt2", "wte")):
        model = lab.model(family)
        plain = model.module()
        engine = lab.engine(engine_cls, model, **INT4)
        did = f"{family}: quantised it"
        want = sorted(name for name, one in plain.named_modules() if isinstance(one, nn.Linear) and name != "lm_head")
        lab.equal(sorted(layers(engine.model)), want, code, f"{did}; names of quantised layers", hint)
        left = {name: one for name, one in engine.model.named_parameters() if name.rpartition(".")[0] not in want}
        for name, parameter in plain.named_parameters():
            if name.rpartition(".")[0] not in want:
                same = name in left and torch.equal(left[name], parameter)
                lab.check(same, code, did, f"{name} as it was", "another", hint)
        tied = engine.model.lm_head.weight is getattr(engine.model, embedding).weight
        lab.equal(tied, plain.config.tie_word_embeddings, code, f"{did}; whether the head is the embedding", hint)


def test_P6_26_a_head_that_is_asked_for(engine_cls, lab):
    code, hint = "P6-26", "quantize_head: the head gets codes of its own; the embedding stays, and is no longer tied"
    for family, embedding in (("tied", "embed_tokens"), ("gpt2", "wte"), ("llama", "embed_tokens")):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model, **INT8, quantize_head=True)
        did = f"{family}: quantised it with the head"
        lab.equal("lm_head" in layers(engine.model), True, code, f"{did}; whether the head is quantised", hint)
        table = getattr(engine.model, embedding).weight
        same = torch.equal(table, getattr(model.module(), embedding).weight)
        lab.check(same, code, did, f"{embedding} as it was", "another", hint)
