"""Why rows differ: parts of scripted anatomies, what is said of them, and the anatomy of a real engine."""

import pytest

from minfer.bench import full_grid, ledger
from minfer.bench.anatomy import anatomy, event_seconds, product_bytes, terms
from minfer.bench.contestants import EngineContestant
from minfer.bench.operators import kind_of
from minfer.bench.sample import Sample
from minfer.bench.step_parts import Rates, parts_of_a_step
from minfer.bench.why import in_words, neighbours, parts, row_named, waterfall
from minfer.bench.workloads import batch, decode, prefill
from minfer.core.errors import MinferError
from minfer.cost.formulas import Formulas
from minfer.course.lab.tiny import tiny_model

ANATOMY = {
    **{"steps": 4.0, "calls": 50.0, "forward_s": 0.8, "products_s": 0.5, "attention_s": 0.1, "cache_s": 0.05},
    **{"communication_s": 0.0, "product_bytes": 1e8, "compiled_s": 0.0},
}


def row(name, *durations, **changes):
    """A row of runs of four tokens that took so long, 0.1 s of it outside of the forward; bandwidth is 1 GB/s."""
    samples = [
        Sample([[0.1, 0.2, 0.3, 0.4]], at, {"forward_s": at - 0.1, "steps": 4.0}, [0.0]).as_dict() for at in durations
    ]
    figures = {"output_throughput": 4 / durations[0]}
    return {"name": name, "samples": samples, "anatomy": {**ANATOMY, **changes}, "figures": figures}


def table(*rows):
    environment = {"load_at_start": 0.0, "cores": 2}
    part = {"about": "scripted", "rows": list(rows), "workload": "table"}
    return {"kind": "table", "bandwidth": 1e9, "environment": environment, "finished": True, "parts": [part]}


FIRST = row("FP32", 0.95, 0.9, 0.94)
SECOND = row("INT8", 0.5, forward_s=0.42, products_s=0.2, product_bytes=2.5e7)


def test_the_parts_of_a_row_are_its_time_per_token():
    parts = terms(ANATOMY, ledger.runs(FIRST)[1], 1e9)
    assert parts.weights == pytest.approx(100)  # 4 steps of 0.1 s of reading, over 4 tokens
    assert parts.arithmetic == pytest.approx(25)
    assert parts.launches == pytest.approx(1000 * (0.8 - 0.5 - 0.1 - 0.05) / 4)
    assert parts.host == pytest.approx(25)
    assert parts.total == pytest.approx(225)  # 0.9 s over 4 tokens: nothing is unexplained


def test_under_a_profiler_alone_a_machine_that_has_slowed_down_since_is_no_part_of_a_row():
    slower = {name: 2 * value if name.endswith("_s") else value for name, value in ANATOMY.items()}
    run = ledger.runs(FIRST)[1]
    assert terms(slower, run, 1e9) == terms(ANATOMY, run, 1e9)


CLOCK = {
    "layers_s": 0.3,
    "head_s": 0.1,
    "attention_s": 0.15,
    "gather_s": 0.02,
    "others_s": 0.23,
    "communication_s": 0.03,
}


def clocked(**changes):
    """A run of four tokens in 1 s, 0.9 s of it in forwards, that has told its parts."""
    facts = {"forward_s": 0.9, "steps": 4.0, **CLOCK, **changes}
    return Sample([[0.25, 0.5, 0.75, 1.0]], 1.0, facts, [0.0])


def test_a_run_that_was_clocked_tells_its_parts_itself_but_for_attention_within_what_is_compiled():
    profiled = {**ANATOMY, "products_s": 0.4, "attention_s": 0.2, "compiled_s": 0.1}
    parts = terms(profiled, clocked(), 1e9)
    assert parts.weights + parts.arithmetic == pytest.approx(250 * 0.4)
    assert parts.weights == pytest.approx(250 * 4 * 1e8 / 1e9)
    assert parts.kv == pytest.approx(250 * (0.15 + 0.1))
    assert (parts.copies, parts.communication) == (pytest.approx(250 * 0.02), pytest.approx(250 * 0.03))
    assert parts.host == pytest.approx(250 * 0.1)
    assert parts.launches == pytest.approx(250 * (0.23 - 0.1))
    assert parts.total == pytest.approx(250 * (1 - 0.07)), "0.07 s of the forward are in none of its parts"


def test_parts_are_of_one_run_since_medians_of_parts_need_not_add_up():
    runs = [clocked(layers_s=0.3 + more, others_s=0.23 - less) for more, less in ((0, 0), (0.2, 0.1), (0.1, 0.2))]
    spread = [run.as_dict() | {"duration": at} for run, at in zip(runs, (1.0, 1.1, 1.2), strict=True)]
    one = {**FIRST, "samples": spread}
    for samples, middle in ((spread, 1), (spread[:2], 0)):
        found = parts(table(one), {**one, "samples": samples})
        assert (found.launches, found.copies) == (pytest.approx(250 * runs[middle].facts["others_s"]), pytest.approx(5))


def test_a_machine_that_has_slowed_down_between_clock_and_profiler_is_known_by_its_products():
    profiled = {**ANATOMY, "products_s": 0.4, "compiled_s": 0.1}
    slower = {name: 2 * value if name.endswith("_s") else value for name, value in profiled.items()}
    assert terms(slower, clocked(), 1e9) == terms(profiled, clocked(), 1e9)


def test_a_model_so_small_that_the_profiler_took_all_the_time_has_parts_that_the_clock_alone_tells():
    nothing = {**dict.fromkeys(ANATOMY, 0.0), "steps": 4.0, "forward_s": -0.1}
    parts = terms(nothing, clocked(), 1e9)
    assert (parts.arithmetic, parts.launches) == (pytest.approx(250 * 0.4), pytest.approx(250 * 0.23))
    for forward in (0.0, -0.1):
        seen = {**ANATOMY, "forward_s": forward}
        assert terms(seen, ledger.runs(FIRST)[0], 1e9).total == pytest.approx(25), "the host's: all else is unexplained"


def test_what_is_in_no_part_is_unexplained():
    one = {**FIRST, "samples": [clocked().as_dict()] * 3}
    slept = clocked(forward_s=1.1).as_dict() | {"duration": 1.2}
    other = {**one, "name": "INT8", "samples": [slept] * 3, "figures": {}}
    made = waterfall(table(one, other), one, other)
    assert made.difference == pytest.approx(50)
    assert made.unexplained == pytest.approx(50)
    assert all(abs(change) < 1e-9 for change in made.parts.values())


def test_products_that_are_faster_than_memory_came_from_a_cache():
    parts = terms({**ANATOMY, "product_bytes": 1e9}, ledger.runs(FIRST)[1], 1e9)
    assert (parts.weights, parts.arithmetic) == (pytest.approx(125), 0)


def test_the_waterfall_is_of_middle_runs_whose_parts_add_up_and_names_what_is_left():
    made = waterfall(table(FIRST, SECOND), FIRST, SECOND)
    assert (made.first, made.second) == (pytest.approx(235), pytest.approx(125))
    assert made.parts["weights"] == pytest.approx(25 - 100)
    products = 250 * 0.5 * 0.84 / 0.8, 250 * 0.2 * 0.4 / 0.42  # of the median run, as in the profiled one
    assert made.parts["arithmetic"] == pytest.approx(products[1] - 25 - (products[0] - 100))
    assert sum(made.parts.values()) + made.unexplained == pytest.approx(made.difference) == -110
    assert made.unexplained == pytest.approx(0, abs=1e-9)
    assert made.noise == pytest.approx(1000 * 0.05 / 4 / 2)


def test_in_words_the_largest_part_comes_first_and_the_bottleneck_has_advice():
    found = table(FIRST, SECOND)
    said = in_words(found, "FP32", "INT8", waterfall(found, FIRST, SECOND))
    assert said[0] == "FP32 → INT8: 235.00 → 125.00 ms per output token (-110.00; 1.88 × the tokens/s)"
    assert "weights read" in said[1]
    assert "unexplained" in said[-4]
    assert said[-3] == "operators in a step: 50 → 50"
    assert said[-2].startswith("INT8 is bound by weights read, 20% of its time")
    assert said[-1] == "measured under the profiler, in shares; weights read is reckoned: its bytes over 1 GB/s"


def test_a_difference_within_the_runs_own_is_said_to_be_none():
    other = row("FP16", 0.93, 0.96)
    found = table(FIRST, other)
    assert "nothing is to be explained" in in_words(found, "FP32", "FP16", waterfall(found, FIRST, other))[1]


def test_rows_without_parts_are_skipped_by_neighbours_and_refused_by_name():
    absent = {"name": "CUDA graph", "samples": [], "absent": "no CUDA device"}
    peer = {"name": "llama.cpp f32", "samples": FIRST["samples"]}
    found = table(FIRST, absent, peer, SECOND)
    assert [(one, other) for one, other, _ in neighbours(found)] == [("FP32", "INT8")]
    with pytest.raises(MinferError, match=r"CUDA graph was not measured: n/a \(no CUDA device\)"):
        row_named(found, "cuda")
    with pytest.raises(MinferError, match=r"llama\.cpp f32 has no parts"):
        row_named(found, "llama")
    with pytest.raises(MinferError, match="'Z' names 0 rows: choose from FP32, CUDA graph"):
        row_named(found, "Z")
    assert row_named(found, "int")["name"] == "INT8"


def test_a_name_that_begins_two_rows_is_refused_unless_it_is_one():
    found = table(FIRST, row("FP32 fused", 1.0))
    assert row_named(found, "fp32") is FIRST
    with pytest.raises(MinferError, match="'FP' names 2 rows"):
        row_named(found, "FP")


def test_a_row_that_cannot_be_has_its_reason_and_no_figure_and_no_prediction_error():
    found = table(FIRST, {"name": "Streams", "samples": [], "absent": "phase 9 is not built"})
    speed, cost = full_grid.grids(found)
    assert speed.rows[1] == ["Streams: n/a (phase 9 is not built)", *["–"] * (len(speed.head) - 1)]
    assert [cells[0] for cells in cost.rows] == ["FP32"]
    assert full_grid.mbu(found, FIRST) == pytest.approx(4 * 1e8 / 0.94 / 1e9)


# ---- a real engine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "options"), [(4, {}), (6, {"quantization": "int8"}), (7, {})])
def test_the_anatomy_of_a_run_has_its_parts_inside_the_forward(phase, options):
    import torch

    if phase >= 5:
        options = {**options, "num_blocks": 64}
    model = tiny_model("llama", 17).module(torch.float32)
    contestant = EngineContestant(phase, model, **options)
    work = batch(17, 3, 6, 4)
    seen = anatomy(contestant, work, 0.0)
    run = contestant.run(work)
    assert seen["steps"] == run.facts["steps"]
    assert all(seen[part] > 0 for part in ("products_s", "attention_s", "cache_s"))
    assert seen["products_s"] + seen["attention_s"] + seen["cache_s"] < seen["forward_s"]
    assert "forward" not in vars(contestant.engine)  # the engine is as it was
    assert not any(module._forward_hooks for module in contestant.engine.model.modules())


@pytest.mark.parametrize("phase", [5, 7])
@pytest.mark.parametrize("work", [decode(17, 3, 6, 12), prefill(17, 9)])
def test_a_steps_parts_are_of_the_steps_that_the_workload_is_about(phase, work):
    import torch

    model = tiny_model("llama", 17).module(torch.float32)
    model_weights = dict(model.named_parameters())
    contestant = EngineContestant(phase, model, num_blocks=64)
    samples = [contestant.run(work)]
    seen = parts_of_a_step(contestant, work, samples, 0.0, Rates(reads=1.0, flops=1e30))
    weights = {name: part for name, part in model_weights.items() if name != "embed_tokens.weight" and part.dim() == 2}
    assert seen.pop("floor_s") == sum(part.nbytes for part in weights.values())  # at a byte a second
    flops = Rates(reads=1e30, flops=1.0).floor(contestant.engine.model, 9, 2)
    head = weights.pop("lm_head.weight").numel()
    assert flops == 2 * (9 * sum(part.numel() for part in weights.values()) + 2 * head)
    step, rest = seen.pop("step_s"), seen.pop("rest_s")
    assert all(seconds > 0 for seconds in [step, *seen.values()])
    assert sum(seen.values()) + rest == pytest.approx(step)
    (run,) = samples
    later = sorted({at for times in run.token_times for at in times})  # when each step ended
    each = later[0] if work.figure == "prefill" else (later[-1] - run.prefilled_s) / 11
    assert step == pytest.approx(each, rel=1e-6)
    assert "forward" not in vars(contestant.engine)
    assert not any(module._forward_hooks for module in contestant.engine.model.modules())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("graph_0_cpp_fused_index_mul_sum_6", "attention"),
        ("graph_0_cpp_fused_amax_exp_masked_fill_sub_sum_7", "attention"),
        ("graph_0_cpp_fused_index_put_view_2", "attention"),
        ("graph_0_cpp_fused_add_expand_mean_mul_pow_rsqrt_0", None),
        ("graph_0_cpp_fused_mul_silu_split_3", None),
        ("minfer::head", "head"),
        ("minfer::product", "products"),
    ],
)
def test_what_is_compiled_counts_as_attention_by_the_operators_in_its_name(name, kind):
    assert kind_of(name) == kind


def test_the_bytes_of_products_are_those_of_the_formulas():
    module = tiny_model("llama", 17).module()
    formulas = Formulas(module.config, "float64")
    assert product_bytes(module) == formulas.layer_bytes + formulas.head_bytes


def test_an_event_costs_the_profiler_some_time_and_no_more_than_an_operator():
    assert 0 <= event_seconds(tiny_model("llama", 17).config) < 1e-3
