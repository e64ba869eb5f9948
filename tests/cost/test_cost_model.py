"""The cost model: parts that sum to the whole, bounds that no prediction beats, and what others have measured."""

import json

import pytest

from minfer.bench.simulation import simulate
from minfer.bench.workloads import batch, decode
from minfer.calibration.fitting import fitted
from minfer.core.checkpoint.shapes import random_config
from minfer.core.errors import MinferError
from minfer.cost import hardware
from minfer.cost.cost_model import CostModel, Setup, Terms
from minfer.cost.formulas import Step
from minfer.cost.hardware import Curve, EngineRates, Hardware, Line, calibrated, find_hardware, known
from minfer.cost.published import published
from minfer.cost.waterfall import NAMES, Waterfall
from minfer.course.lab.tiny import tiny_model

SMOL = random_config("smollm2-135m")
PLAIN = Hardware("x", "x", bandwidth=1e9, peak_bandwidth=2e9, flops={"float32": 1e12}, operation=1e-5)
STEPS = [Step.decode([100]), Step.decode([64] * 16, 16), Step.prefill(200)]


def test_the_published_figures_of_gpt_fast_are_met():
    named = {(one.phase, one.weights): one for one in published() if one.model == "llama2-7b" and one.ranks == 1}
    assert {key: one.tokens_per_s for key, one in named.items()} == {
        (3, "bfloat16"): 25.5,
        (8, "bfloat16"): 104.9,
        (8, "int8"): 155.58,
        (8, "int4-g32"): 196.8,
    }
    assert all(abs(one.error) < 0.10 for one in named.values()), {key: one.error for key, one in named.items()}


def test_figures_that_no_rate_was_taken_from_are_met_on_average_and_each_says_where_it_is_from():
    proofs = [one for one in published() if not one.fitted]
    assert len(proofs) >= 20
    assert sum(abs(one.error) for one in proofs) / len(proofs) < 0.07
    assert max(abs(one.error) for one in proofs) < 0.16
    assert all(one.source for one in published())


@pytest.mark.parametrize("name", known())
def test_hardware_says_where_its_rates_are_from_and_promises_no_less_than_is_reached(name):
    made = find_hardware(name)
    assert made.bandwidth <= made.peak_bandwidth
    assert {"bandwidth", "peak_bandwidth", "flops", "operation", "kernel"} <= made.sources.keys()
    assert Hardware.from_dict(json.loads(json.dumps(made.as_dict()))) == made


@pytest.mark.parametrize("name", known())
@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_faster_than_the_speed_of_light(name, step):
    for phase in (3, 5, 7, 8):
        model = CostModel(Setup(SMOL, phase, "bfloat16"), find_hardware(name))
        assert model.limit(step) <= model.step(step).total


def test_published_measurements_are_slower_than_light_too():
    for one in published():
        model = CostModel(one.setup, find_hardware(one.hardware))
        assert model.limit(Step.decode([one.tokens // 2])) < 1 / one.tokens_per_s


def test_a_step_that_only_reads_takes_its_bytes_over_the_bandwidth():
    cheap = Hardware("x", "x", 1e9, 1e9, {"float32": 1e18}, operation=0.0, moved=1e18)
    step = Step.decode([100])
    model = CostModel(Setup(SMOL, 3, "float32"), cheap)
    assert model.step(step).total == pytest.approx(model.formulas.work(step).nbytes / 1e9, rel=1e-3)


def test_a_batch_reads_the_weights_once():
    model = CostModel(Setup(SMOL, 3, "float32"), PLAIN)
    one, many = model.step(Step.decode([64])), model.step(Step.decode([64] * 8))
    assert many.weights == one.weights
    assert many.kv == pytest.approx(8 * one.kv)


def timed(engines, **rates):
    """Hardware of 1 GB/s that knows such engines."""
    return Hardware("x", "x", 1e9, 1e9, {"float32": 1e12}, operation=1.0, engines=engines, **rates)


def engine_rates(**changes):
    """Of an engine all of whose parts take a different time."""
    lines = {
        "beside": Curve(((2, 4.0), (4, 5.0), (6, 6.0), (14, 9.0))),
        "prefill": Line(7.0, 1e-3),
        "decode": Line(11.0, 1e-6),
        "gather": Line(13.0, 1e-7),
    }
    curve = Curve(((1, 1e-8), (4, 2e-8)))
    return EngineRates(**{"layers": curve, "head": curve, "host": Line(17.0, 0.25), **lines, **changes})


def test_an_engine_that_was_timed_takes_what_its_parts_took():
    model = CostModel(Setup(SMOL, 5), timed({"float32": engine_rates()}))
    terms, formulas = model.step(Step.decode([33, 40, 48, 20], 16)), model.formulas
    weights = formulas.layer_weights + formulas.head_weights
    assert terms.weights + terms.arithmetic == pytest.approx(2e-8 * weights)
    assert terms.kv == pytest.approx(30 * (11.0 + 1e-6 * 4 * 48 * 2 * 3 * 64 * 4))
    assert terms.weights == pytest.approx(4 * weights / 1e9)
    assert terms.copies == pytest.approx(30 * (13.0 + 1e-7 * 2 * 4 * 48 * 2 * 3 * 64 * 4))
    assert terms.launches == pytest.approx(30 * 5.0)
    assert terms.host == pytest.approx(17.0 + 0.25 * 4)
    prompts = model.step(Step((5, 9), (5, 9), 2))
    assert prompts.copies == 0
    assert prompts.kv == pytest.approx(30 * (2 * 7.0 + 1e-3 * 4 * 9 * 64 * (25 + 81)))


def test_where_attention_is_compiled_a_decode_step_gathers_nothing_and_has_a_line_of_its_own():
    model = CostModel(Setup(SMOL, 7), timed({"float32, fused": engine_rates(compiled=Line(2.0, 0.125))}))
    alone = model.step(Step.decode([40, 33], 16))
    assert (alone.copies, alone.launches) == (0, pytest.approx(30 * (2.0 + 0.125 * 2)))
    mixed = model.step(Step((1, 5), (48, 5), 2, 48))
    assert (mixed.copies > 0, mixed.launches) == (True, pytest.approx(30 * 6.0))


def test_an_engine_of_several_ranks_is_not_one_of_a_single_rank_twice_as_fast():
    shared = engine_rates(communication=Line(5.0, 1e-3))
    hardware = timed({"float32, fused": engine_rates(), "float32, fused, 2 ranks": shared})
    one, two, three = (CostModel(Setup(SMOL, 10, ranks=ranks), hardware).step(STEPS[1]) for ranks in (1, 2, 3))
    assert two.total - two.communication == pytest.approx(one.total), "how well it is shared is in the rates"
    moved = 16 * (2 * 30 * 576 + 0.5 * 49152) * 4
    assert two.communication == pytest.approx(5.0 + 1e-3 * moved)
    assert three.total != one.total, "none was timed: by formula"


def test_a_curve_is_straight_in_logarithms_and_goes_on_by_the_row():
    curve = Curve(((1, 1.0), (16, 4.0)))
    assert (curve.seconds(1), curve.seconds(4), curve.seconds(16), curve.seconds(32)) == pytest.approx((1, 2, 4, 8))


@pytest.mark.parametrize("points", [[(1, 3.0), (2, 5.0), (4, 9.0)], [(1, 2.0), (8, 16.0)], [(1, 5.0), (9, 5.0)]])
def test_a_line_goes_through_points_that_lie_on_one(points):
    made = Line(*fitted({(1.0, float(size)): took for size, took in points}))
    assert [made.seconds(size) for size, _ in points] == pytest.approx([took for _, took in points])


def test_a_line_has_no_time_below_nothing():
    made = Line(*fitted({(1.0, 1.0): 0.1, (1.0, 10.0): 9.0, (1.0, 20.0): 30.0}))
    assert made.call == 0
    assert made.per > 0


def test_ranks_share_the_weights_and_pay_for_it():
    made = Hardware("x", "x", 1e9, 1e9, {"float32": 1e15}, operation=0.0, link=Line(1e-3, 1e-9))
    one, two = (CostModel(Setup(SMOL, 8, ranks=ranks), made).step(Step.decode([64])) for ranks in (1, 2))
    assert two.weights == pytest.approx(one.weights / 2)
    assert one.communication == 0
    moved = 2 * 30 * 4 * 576 + 0.5 * 4 * 49152  # a ring of two moves each message once
    assert two.communication == pytest.approx(61e-3 + moved * 1e-9)


def test_a_host_that_runs_ahead_hides_behind_the_device_or_the_device_behind_it():
    slow, fast = (Hardware("x", "x", rate, rate, {"float32": 1e15}, 1e-5, asynchronous=True) for rate in (1e9, 1e15))
    step = Step.decode([64])
    waiting = CostModel(Setup(SMOL, 3), slow).step(step)
    assert waiting.launches < 0.01 * waiting.total  # what they move
    launched = CostModel(Setup(SMOL, 3), fast).step(step)
    assert launched.launches == pytest.approx(launched.total, rel=1e-3)
    assert CostModel(Setup(SMOL, 8), fast).step(step).total < launched.total / 100


# ---- whole runs ----------------------------------------------------------------------------------------------------


def test_a_simulated_run_takes_the_sum_of_its_steps_and_the_parts_sum_to_it():
    model = CostModel(Setup(SMOL, 5), PLAIN)
    sample, terms, steps = simulate(model, decode(SMOL.vocab_size, 4, 20, 6), 4)
    assert sample.duration == pytest.approx(sum(model.step(step).total for step in steps)) == terms.total
    assert sum(getattr(terms, name) for name in NAMES) == pytest.approx(terms.total)
    assert [len(times) for times in sample.token_times] == [6] * 4
    assert sample.ttft_ms == pytest.approx(1000 * model.step(steps[0]).total)


@pytest.mark.parametrize("phase", [1, 3, 4, 5])
def test_the_scheduler_that_is_simulated_is_the_one_that_serves(phase):
    from minfer.bench.contestants import EngineContestant

    model = tiny_model("llama", 17)
    work = batch(model.config.vocab_size, 5, 8, 5)
    options = {"max_batch": 2} if phase >= 4 else {}
    if phase >= 5:
        options["num_blocks"] = 64
    real = EngineContestant(phase, model.module(), **options).run(work)
    _, _, steps = simulate(CostModel(Setup(model.config, phase), PLAIN), work, 2)
    assert (len(steps), sum(step.tokens for step in steps)) == (real.facts["steps"], real.facts["tokens_fed"])


def test_one_request_at_a_time_waits_for_the_one_before():
    sample, _, _ = simulate(CostModel(Setup(SMOL, 6), PLAIN), decode(SMOL.vocab_size, 3, 8, 4), 1)
    assert sample.waits == pytest.approx([0.0, sample.e2es[0], sample.e2es[1]])


# ---- files, and the difference of two rows -------------------------------------------------------------------------


def test_hardware_that_is_not_known_or_not_calibrated_says_what_is(tmp_path, monkeypatch):
    monkeypatch.setenv("MINFER_HOME", str(tmp_path))
    with pytest.raises(MinferError, match=r"run minfer calibrate, or give --hardware .*a100-80gb"):
        find_hardware(None)
    with pytest.raises(MinferError, match="'b100' is neither known nor a file"):
        find_hardware("b100")
    for text in ("{", "[]", "{}", '{"schema": "minfer.hardware/2"}', '{"schema": "minfer.hardware/3", "speed": 3}'):
        (tmp_path / "h.json").write_text(text)
        with pytest.raises(MinferError, match="describes no hardware"):
            find_hardware(str(tmp_path / "h.json"))
    assert calibrated() is None
    hardware.write(hardware.calibrated_path(), made := timed({"int8": engine_rates(compiled=Line(1.0, 2.0))}))
    assert find_hardware(None) == calibrated() == made


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engines", []),
        ("engines", {"int8": {"layers": []}}),
        ("bandwidth", 0),
        ("bandwidth", "fast"),
        ("flops", {}),
        ("flops", {"float32": None}),
        ("operation", -1.0),
        ("link", [1.0]),
    ],
)
def test_a_file_of_hardware_with_a_value_that_no_hardware_has_is_refused(key, value, tmp_path):
    facts = timed({"int8": engine_rates()}).as_dict() | {key: value}
    (tmp_path / "h.json").write_text(json.dumps(facts))
    with pytest.raises(MinferError, match="describes no hardware"):
        find_hardware(str(tmp_path / "h.json"))


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (2, 1.0)), ((2, 1.0), (1, 1.0)), ((1, -1.0),)])
def test_a_curve_has_growing_numbers_of_rows(points):
    with pytest.raises(ValueError, match="growing"):
        Curve(points)


def test_a_curve_of_products_that_were_not_timed_is_zero_between_its_points_too():
    assert Curve(((1, 0.0), (8, 0.0))).seconds(3) == 0.0
    assert 0.0 < Curve(((1, 0.0), (8, 6.0))).seconds(2) < 6.0


def test_the_parts_of_a_waterfall_and_the_unexplained_are_the_difference():
    made = Waterfall.of(10.0, 6.0, Terms(weights=7.0, host=1.0), Terms(weights=2.0, arithmetic=1.5, host=1.25), 0.5)
    assert made.difference == -4.0
    assert sum(made.parts.values()) + made.unexplained == pytest.approx(made.difference)
    assert made.parts["weights"] == -5.0
    assert made.unexplained == pytest.approx(-4.0 - (-5.0 + 1.5 + 0.25))
    assert made.unexplained_share == pytest.approx(0.75 / 4)
    assert not made.is_noise
    assert Waterfall.of(10.0, 10.25, Terms(), Terms(), 0.5).is_noise
    assert Waterfall.of(1.0, 1.0, Terms(), Terms()).unexplained_share == 0
