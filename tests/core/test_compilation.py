"""Compiling for real, and doing without a compiler: said once, with what to install, and the answers are the same."""

import shutil

import pytest
import torch
from torch import nn

from minfer.core.device import Device
from minfer.core.errors import MinferWarning, OptionsError
from minfer.core.measures.trace import Trace
from minfer.core.params import SamplingParams
from minfer.course.lab.tiny import tiny_model
from minfer.phase6 import Engine as Phase6Engine
from minfer.phase6 import QuantizationOptions, QuantizedLinear, find_scheme
from minfer.phase7 import Engine, FusionOptions, PagedStep
from minfer.phase7.merge import merged
from minfer.phase7.product import PackedLinear, Product, SummedProduct, TransposedLinear

GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
PROMPT = [5, 9, 31, 7]
HAS_COMPILER = any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def answer(compiler, dtype=torch.float32):
    model = tiny_model("qwen3", 17)
    engine = Engine(model.module(dtype), None, FusionOptions(device="cpu", compiler=compiler))
    return engine, engine.generate([PROMPT], GREEDY)[0].token_ids


WANTED = tiny_model("qwen3", 17).oracle.greedy(PROMPT, 6)[0]


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler here")
def test_inductor_compiles_three_graphs_whose_kernels_have_names_in_a_trace_and_write_nothing_outside_the_pool():
    engine, token_ids = answer("inductor")
    assert token_ids == WANTED
    assert str(engine.compilation) == "inductor, 3 graphs"
    trace = Trace.of(lambda: engine.generate([PROMPT], GREEDY))
    assert any("_fused_" in record.name() for record in trace.records)
    for rows in (1, 7):
        write_outside(engine, rows)


def write_outside(engine, rows):
    """A wrong block table is an error, and nobody's memory is written."""
    cache, tokens = engine.cache, torch.zeros(rows, dtype=torch.int64)
    tables, masks = torch.zeros(rows, 3, dtype=torch.int64), cache.decode_masks(tokens, 3 * cache.block_size)
    cache.step = PagedStep(tokens + cache.pool[0, 0, ..., 0, 0].numel(), tables, masks, [])
    with torch.inference_mode(), pytest.raises(RuntimeError, match="index out of bounds"):
        engine.model(tokens, tokens, cache.layers)


def test_without_a_compiler_it_says_what_to_install_and_goes_on():
    missing = {"cpp.cxx": (None, "/nowhere/c++"), "force_disable_caches": True}
    with (
        torch._inductor.config.patch(missing),
        pytest.warns(MinferWarning, match=r"not compiled.*install g\+\+") as said,
    ):
        engine, token_ids = answer("inductor")
    assert [warning.category for warning in said].count(MinferWarning) == 1  # others are of what torch imports now
    assert token_ids == WANTED
    assert str(engine.compilation).startswith("not compiled: InvalidCxxCompiler")


def test_a_mistake_in_the_region_is_not_taken_for_a_missing_compiler(monkeypatch):
    def broken(block, following, x, attended, rotary):
        return block.there_is_no_such_part(x)

    monkeypatch.setattr("minfer.phase7.engine.between", broken)
    with pytest.raises(Exception, match="there_is_no_such_part"):
        answer("eager")


def test_a_small_model_is_not_compiled_unless_asked():
    engine, token_ids = answer("auto")
    assert "too few" in str(engine.compilation)
    assert token_ids == WANTED
    assert str(answer("none")[0].compilation) == "not compiled: as asked"


def test_an_unknown_compiler_is_refused():
    with pytest.raises(OptionsError, match="compiler 'inducktor' is unknown: use one of auto, none, eager"):
        answer("inducktor")


@pytest.mark.parametrize("form", [PackedLinear, TransposedLinear])
@pytest.mark.parametrize("lead", [(1,), (2,), (5,), (2, 3), (1, 1)])
def test_each_form_of_a_product_gives_the_product(form, lead):
    generator = torch.Generator().manual_seed(3)
    linear = nn.Linear(77, 41, bias=form is PackedLinear).requires_grad_(False)
    x = torch.randn(*lead, 77, generator=generator)
    assert form is not PackedLinear or PackedLinear.serves(linear.weight)
    layer = Product(form(linear), 41)
    torch.testing.assert_close(layer(x), linear(x), rtol=1e-5, atol=1e-5)


def test_merging_keeps_every_weight_and_bias():
    parts = [nn.Linear(7, width) for width in (5, 3, 2)]
    stacked = merged(parts)
    assert torch.equal(stacked.weight, torch.cat([part.weight for part in parts]))
    assert torch.equal(stacked.bias, torch.cat([part.bias for part in parts]))
    assert merged([nn.Linear(7, 2, bias=False)]).bias is None


@pytest.mark.parametrize("scheme", ["fp16", "int8", "int4", "fp8"])
@pytest.mark.parametrize("family", ["biased", "qwen3", "gpt2"])
def test_quantised_layers_are_merged_code_by_code(family, scheme):
    """A model that is quantised already, as one that is stored so, and one that is quantised after merging."""
    model = tiny_model(family, 17)
    compiler = "eager" if scheme == "int4" else "none"  # its parts are the most; to compile all takes half a minute
    options = FusionOptions(device="cpu", compiler=compiler, quantization=scheme)
    stored = Phase6Engine(model.module(), None, QuantizationOptions(device="cpu", quantization=scheme)).model
    late, early = Engine(model.module(), None, options), Engine(stored, None, options)
    logits = [engine.forward(engine.whole(PROMPT, [])) for engine in (late, early)]
    assert torch.equal(*logits)
    exact = Engine(model.module(), None, FusionOptions(device="cpu", compiler="none"))
    assert not torch.allclose(exact.forward(exact.whole(PROMPT, [])), logits[0], rtol=0, atol=1e-6)


class ScaleLeftOut(SummedProduct):
    """A mistake: codes for weights."""

    def forward(self, x):
        return self.biased((self.layer.codes * x.float()[0]).sum(-1).to(x.dtype).unsqueeze(0))


class ScaleOfAnotherChannel(SummedProduct):
    """A mistake: scales in the wrong order."""

    def forward(self, x):
        sums = (self.layer.codes * x.float()[0]).sum(-1)
        return self.biased((sums * self.layer.scale.roll(1)).to(x.dtype).unsqueeze(0))


class TailLeftOut(SummedProduct):
    """A mistake: only what fills whole vectors of 64 codes is summed."""

    def forward(self, x):
        whole = x.shape[-1] // 64 * 64
        sums = (self.layer.codes[:, :whole] * x.float()[0, :whole]).sum(-1)
        return self.biased((sums * self.layer.scale).to(x.dtype).unsqueeze(0))


MISTAKES = [ScaleLeftOut, ScaleOfAnotherChannel, TailLeftOut]


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler here")
@pytest.mark.parametrize("form", [SummedProduct, *MISTAKES])
def test_the_sums_that_a_compiler_writes_are_the_product_and_a_mistake_in_them_is_seen(form):
    """96 codes a channel: a vector of 64, and a tail."""
    torch.manual_seed(3)
    layer = QuantizedLinear.from_linear(nn.Linear(96, 5), find_scheme("int8"))
    layer.pack(Device.get("cpu"), torch.bfloat16)
    backend = "inductor" if form is SummedProduct else "eager"  # a mistake is one however it is compiled
    compiled = torch.compile(form(layer, 5), backend=backend, fullgraph=True, dynamic=True)
    x = torch.randn(1, 96).bfloat16()
    with torch.inference_mode():
        made = compiled(x).double()
    exact = x.double() @ layer.dequantize().t() + layer.bias.double()
    assert torch.allclose(made, exact, rtol=2**-8, atol=2**-8) == (form is SummedProduct)


@pytest.mark.parametrize("bias", [False, True])
def test_for_a_single_row_of_8_bit_codes_the_compiler_sees_the_sums_themselves(bias):
    torch.manual_seed(3)
    layer = QuantizedLinear.from_linear(nn.Linear(64, 5, bias=bias), find_scheme("int8"))
    layer.pack(Device.get("cpu"), torch.bfloat16)
    compiled = torch.compile(SummedProduct(layer, 5), backend="eager", fullgraph=True, dynamic=True)
    for count, calls in ((1, 0), (3, 1)):
        x = torch.randn(count, 64).bfloat16()
        with torch.inference_mode():
            made = compiled(x)
        exact = x.double() @ layer.dequantize().t() + (layer.bias.double() if bias else 0)
        assert made.dtype == x.dtype
        assert torch.allclose(made.double(), exact, rtol=2**-8, atol=2**-7)
        assert sum(layer.ran.values()) == calls  # of the kernel's own product
