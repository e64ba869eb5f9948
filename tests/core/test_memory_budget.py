"""The memory budget is held against what is really there: parameters, caches, tables, packed tensors, live bytes."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from minfer.core.checkpoint.shapes import random_config
from minfer.core.config import ModelConfig
from minfer.core.device.cards import CARDS, find_card
from minfer.core.errors import DeviceError, OptionsError
from minfer.core.gpt2 import GPT2
from minfer.core.model import Transformer
from minfer.core.params import SamplingParams
from minfer.core.sampling import sample
from minfer.phase2 import MemoryBudget
from minfer.phase2.parameter_count import ParameterCount
from minfer.phase2.weight_formats import FORMATS, find_format
from minfer.phase3 import KVCache

torch.set_num_threads(1)
GIB = 2**30
SIZES = {  # no two alike
    "vocab_size": 1009,
    "hidden_size": 96,
    "intermediate_size": 250,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 640,
}


def llama(architecture="LlamaForCausalLM", **facts):
    return ModelConfig.from_dict({"architectures": [architecture], **SIZES, **facts})


def gpt2(**facts):
    sizes = {"vocab_size": 1009, "n_embd": 96, "n_layer": 3, "n_head": 6, "n_positions": 640}
    return ModelConfig.from_dict({"architectures": ["GPT2LMHeadModel"], **sizes, **facts})


CONFIGS = {
    "llama": llama(),
    "llama with a tied head": llama(tie_word_embeddings=True),
    "llama with biases": llama(attention_bias=True, mlp_bias=True),
    "llama with its own head_dim": llama(head_dim=22, num_key_value_heads=3),
    "llama without GQA": llama(num_key_value_heads=6),
    "mistral": llama("MistralForCausalLM", sliding_window=100),
    "qwen2": llama("Qwen2ForCausalLM", tie_word_embeddings=True),
    "qwen2, upper layers windowed": llama(
        "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=64, max_window_layers=1
    ),
    "qwen3": llama("Qwen3ForCausalLM", head_dim=40),
    "gpt2": gpt2(),
    "gpt2 with its own head": gpt2(tie_word_embeddings=False, n_inner=130),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def make_model(config, dtype=torch.float32):
    model = (GPT2 if config.architecture == "GPT2LMHeadModel" else Transformer)(config)
    return model.to(dtype).eval().requires_grad_(False)


def part_of(name):
    if name.startswith(("embed_tokens", "wte", "wpe")):
        return "embedding"
    if "norm" in name or ".ln_" in name or name.startswith("ln_"):
        return "norms"
    return next(part for key, part in (("attn", "attention"), ("mlp", "mlp"), ("lm_head", "head")) if key in name)


# ---- parameters and weights ------------------------------------------------------------------------------------------


@every_config
def test_parameters_are_counted_by_part_as_the_model_has_them(config):
    model, counted = make_model(config), ParameterCount.of(config)
    for part in ("embedding", "attention", "mlp", "norms", "head"):
        real = sum(p.numel() for name, p in model.named_parameters() if part_of(name) == part)
        assert getattr(counted, part) == real, part
    assert counted.total == sum(p.numel() for p in model.parameters())
    assert counted.largest == max(p.numel() for p in model.parameters())


def test_published_models_have_their_published_number_of_parameters():
    assert ParameterCount.of(random_config("llama2-7b")).total == 6_738_415_616
    assert ParameterCount.of(random_config("gpt2")).total == 124_439_808


@every_config
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_float_weights_have_the_bytes_of_the_models_parameters(config, dtype):
    model = make_model(config, getattr(torch, dtype))
    budget = MemoryBudget(config, GIB, dtype=dtype)
    assert budget.weights == sum(p.nbytes for p in model.parameters())
    assert budget.loading_peak == budget.weights + max(p.nbytes for p in model.parameters())


@every_config
def test_linear_layers_are_quantised_and_a_tied_head_is_not(config):
    model = make_model(config)
    tied = model.lm_head if config.tie_word_embeddings else None
    linears = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not tied]
    assert ParameterCount.of(config).quantisable == sum(linear.weight.numel() for linear in linears)


def packed(rows, columns, name):
    """The tensors of a quantised matrix, as they would lie in memory."""
    if name in ("int8", "fp8"):
        number = torch.int8 if name == "int8" else torch.float8_e4m3fn
        return [torch.empty(rows, columns, dtype=number), torch.empty(rows, dtype=torch.bfloat16)]
    groups = -(-columns // int(name.removeprefix("int4-g")))
    scales_and_zeros = torch.empty(2, rows, groups, dtype=torch.bfloat16)
    return [torch.empty(rows, (columns + 1) // 2, dtype=torch.uint8), scales_and_zeros]


@pytest.mark.parametrize("name", ["int8", "fp8", "int4-g128", "int4-g64", "int4-g32"])
@pytest.mark.parametrize("shape", [(96, 256), (7, 129), (33, 20)])
def test_a_quantised_matrix_has_the_bytes_of_its_packed_tensors(name, shape):
    assert find_format(name).matrix_bytes(*shape) == sum(tensor.nbytes for tensor in packed(*shape, name))


@every_config
@pytest.mark.parametrize("name", ["int8", "int4-g64"])
def test_a_quantised_model_keeps_what_is_no_linear_layer_in_16_bits(config, name):
    model = make_model(config, torch.bfloat16)
    expected = sum(p.nbytes for p in model.parameters())
    for module in model.modules():
        if isinstance(module, nn.Linear) and not (module is model.lm_head and config.tie_word_embeddings):
            expected += sum(tensor.nbytes for tensor in packed(*module.weight.shape, name)) - module.weight.nbytes
    assert MemoryBudget(config, GIB, dtype=name).weights == expected


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("float64", 56), ("float32", 28), ("float16", 14), ("bfloat16", 14), ("int8", 7), ("fp8", 7), ("int4", 3.5)],
)
def test_seven_billion_parameters_take_the_known_gigabytes(name, gigabytes):
    assert find_format(name).raw_bytes(7_000_000_000) == gigabytes * 1e9


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_groups_cost_half_a_byte_and_four_bytes_per_group(group):
    assert FORMATS[f"int4-g{group}"].matrix_bytes(1, 4096) == 4096 * (0.5 + 4 / group)


# ---- cache and tables ------------------------------------------------------------------------------------------------


@every_config
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_the_cache_has_the_bytes_that_phase_3_allocates(config, dtype):
    cache = KVCache(config, getattr(torch, dtype), torch.device("cpu"))
    cache.reserve([SimpleNamespace(max_length=77)])
    assert MemoryBudget(config, GIB, dtype=dtype, context=77).kv_cache == cache.nbytes
    assert MemoryBudget(config, GIB, dtype=dtype, context=77, batch=5).kv_cache == 5 * cache.nbytes


def test_the_cache_may_have_a_dtype_of_its_own():
    wide, narrow = (MemoryBudget(CONFIGS["llama"], GIB, kv_dtype=kv_dtype) for kv_dtype in ("float32", "fp8"))
    assert wide.kv_cache == 4 * narrow.kv_cache
    assert wide.weights == narrow.weights


def test_gqa_saves_what_a_kv_head_per_query_head_would_cost():
    grouped, single = (MemoryBudget(CONFIGS[name], GIB) for name in ("llama", "llama without GQA"))
    assert grouped.kv_cache_without_gqa == single.kv_cache == 3 * grouped.kv_cache
    assert single.kv_cache_without_gqa == single.kv_cache


def test_windows_are_counted_layer_by_layer_and_phase_3_stores_all_the_same():
    budget = MemoryBudget(CONFIGS["qwen2, upper layers windowed"], GIB, context=600)
    per_layer = budget.kv_per_token // 3
    assert budget.kv_cache_in_windows == (600 + 64 + 64) * per_layer
    assert budget.kv_cache == 3 * 600 * per_layer
    assert replace(budget, batch=4).kv_cache_in_windows == 4 * budget.kv_cache_in_windows
    short = MemoryBudget(CONFIGS["mistral"], GIB, context=90)
    assert short.kv_cache_in_windows == short.kv_cache


@every_config
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_rotary_table_has_its_real_bytes(config, dtype):
    table = getattr(make_model(config, getattr(torch, dtype)), "rotary", torch.empty(0))
    assert MemoryBudget(config, GIB, dtype=dtype).rotary_table == table.nbytes


# ---- activations -----------------------------------------------------------------------------------------------------

WIDE = {"vocab_size": 9973, "hidden_size": 256, "intermediate_size": 600, "num_attention_heads": 8}
STEPS = {
    "llama": llama(**WIDE),
    "llama, small MLP": llama(**{**WIDE, "intermediate_size": 128}),
    "llama, large MLP": llama(**{**WIDE, "intermediate_size": 1500}),
    "qwen3, wide heads": llama("Qwen3ForCausalLM", head_dim=64, **WIDE),
    "mistral, windowed": llama("MistralForCausalLM", sliding_window=100, **WIDE),
    "mistral, narrow": llama("MistralForCausalLM", sliding_window=100, vocab_size=9973),
    "gpt2": gpt2(n_embd=256, n_head=8, vocab_size=9973),
    "gpt2, small MLP": gpt2(n_embd=256, n_head=8, vocab_size=9973, n_inner=130),
}


def live_bytes(work, path):
    """The most bytes that torch's allocator had given out at any moment of `work`, above those at its start."""
    work()  # what is made once and kept is there now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    profiler.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    taken = [event["args"] for event in sorted(events, key=lambda event: event["ts"])]
    before = taken[0]["Total Allocated"] - taken[0]["Bytes"]
    return max(event["Total Allocated"] for event in taken) - before


def step(config, dtype, tokens, past):
    """A forward of `tokens` tokens behind `past`, and a draw from the last one's logits."""
    model, cache = make_model(config, dtype), KVCache(config, dtype, torch.device("cpu"))
    cache.reserve([SimpleNamespace(max_length=past + tokens)])
    drawn = SimpleNamespace(
        params=SamplingParams(temperature=1.0), seed=1, prompt_ids=[1], output_ids=[], num_drawn=0, end_ids=()
    )
    input_ids, positions = torch.zeros(tokens, dtype=torch.int64), torch.arange(past, past + tokens)

    @torch.inference_mode()
    def work():
        cache.start, cache.end = 0, past
        logits = model(input_ids, positions, cache.begin(positions), torch.tensor([tokens - 1]))
        sample(logits, [drawn])

    return work


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_prefill_holds_what_was_estimated_within_a_tenth(name, dtype, tmp_path):
    measured = live_bytes(step(STEPS[name], getattr(torch, dtype), 600, 0), tmp_path / "trace.json")
    estimate = MemoryBudget(STEPS[name], GIB, dtype=dtype, context=600).prefill.peak
    assert 0.9 < estimate / measured < 1.1, f"estimated {estimate:,} bytes, measured {measured:,}"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_decode_step_holds_what_was_estimated_within_a_tenth(name, tmp_path):
    measured = live_bytes(step(STEPS[name], torch.bfloat16, 1, 500), tmp_path / "trace.json")
    estimate = MemoryBudget(STEPS[name], GIB, dtype="bfloat16").decode.peak
    assert 0.9 < estimate / measured < 1.1, f"estimated {estimate:,} bytes, measured {measured:,}"


# ---- what fits -------------------------------------------------------------------------------------------------------


def test_parts_and_the_rest_make_up_the_card():
    budget = MemoryBudget(random_config("llama3-8b"), find_card("l4").memory, batch=2, context=4096)
    parts = budget.weights + budget.rotary_table + budget.kv_cache + budget.activations + budget.reserve
    assert parts + budget.free == find_card("l4").memory
    assert MemoryBudget(budget.config, parts, batch=2, context=4096).fits
    assert not MemoryBudget(budget.config, parts - 1, batch=2, context=4096).fits


def test_the_larger_of_prefill_and_decode_is_what_must_fit():
    long, broad = (MemoryBudget(CONFIGS["llama"], GIB, batch=batch, context=600) for batch in (1, 6000))
    assert long.activations == long.prefill.peak > long.decode.peak
    assert broad.activations == broad.decode.peak > broad.prefill.peak


@pytest.mark.parametrize("model", ["llama3-8b", "mistral-7b", "qwen2.5-7b", "gpt2-medium"])
@pytest.mark.parametrize("memory", [18 * GIB, 23 * GIB])
@pytest.mark.parametrize("context", [300, 1000])
def test_what_is_said_to_fit_is_the_most_that_fits(model, memory, context):
    config = random_config(model)
    most = MemoryBudget(config, memory, context=context).most_sequences()
    assert MemoryBudget(config, memory, context=context, batch=most).fits
    assert not MemoryBudget(config, memory, context=context, batch=most + 1).fits
    longest = MemoryBudget(config, memory, batch=20, context=1).longest_context()
    assert MemoryBudget(config, memory, batch=20, context=longest).fits
    assert longest == config.context or not MemoryBudget(config, memory, batch=20, context=longest + 1).fits


def test_nothing_fits_where_the_weights_do_not():
    budget = MemoryBudget(random_config("llama2-13b"), find_card("t4").memory)
    assert not budget.fits
    assert budget.most_sequences() == budget.longest_context() == 0


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"dtype": "fp16"}, "dtype 'fp16' is unknown .*float16.*weights can be float64, .*int4"),
        ({"kv_dtype": "int4"}, "KV dtype 'int4' is unknown: use float64, .*int8"),
        ({"batch": 0}, "batch = 0: give at least 1"),
        ({"context": 0}, "context = 0 tokens: this model takes 1 to 640"),
        ({"context": 641}, "context = 641 tokens: this model takes 1 to 640"),
        ({"memory": 0}, "memory = 0 bytes"),
    ],
)
def test_choices_that_cannot_be_are_refused_with_what_can(choices, message):
    with pytest.raises(OptionsError, match=message):
        MemoryBudget(**{"config": CONFIGS["llama"], "memory": GIB, **choices})


# ---- cards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090", "rtx-4090"])
def test_a_card_is_found_however_it_is_spelt(name):
    assert find_card(name).memory == 24_564 * 2**20


@pytest.mark.parametrize(
    ("name", "hint"), [("a100", "a100-40gb or a100-80gb"), ("rtx4091", "rtx4090"), ("v100", "v100-16gb")]
)
def test_an_unknown_card_names_those_that_are_close_and_all_known_ones(name, hint):
    with pytest.raises(DeviceError, match=f"{name!r} is unknown .did you mean .*{hint}.*known: t4, .*v100-32gb"):
        find_card(name)


def test_cards_have_about_the_memory_that_is_on_their_box():
    for card in CARDS.values():
        sold = int(card.title.split()[-2]) * 2**30
        assert 0.92 * sold < card.memory <= 1.0001 * sold, card.name


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "qwen3-0.6b"])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_offloaded_layers_leave_two_buffers_on_the_card(name, dtype):
    config = random_config(f"random:{name}")
    whole = MemoryBudget(config, 10**11, dtype=dtype)
    shallower = MemoryBudget(replace(config, num_layers=config.num_layers - 1), 10**11, dtype=dtype)
    assert whole.layer == whole.weights - shallower.weights
    for count, saved in ((0, 0), (1, 0), (2, 0), (3, 1), (config.num_layers, config.num_layers - 2)):
        away = replace(whole, offload_layers=count)
        assert whole.needed - away.needed == saved * whole.layer


@pytest.mark.parametrize("count", [-1, 33])
def test_more_layers_than_there_are_cannot_be_offloaded(count):
    with pytest.raises(OptionsError, match=f"^offload_layers = {count}: the model has 32 layers: give 0 to 32"):
        MemoryBudget(random_config("random:llama3-8b"), 10**11, offload_layers=count)
