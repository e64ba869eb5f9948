"""Counts and shares of operators: on calls whose kinds are known, then on engines."""

import pytest
import torch
import torch.nn.functional as F

from minfer.bench import table
from minfer.bench.contestants import EngineContestant
from minfer.bench.ledger import entry
from minfer.bench.operators import KINDS, Operators
from minfer.bench.ops import BATCHES, count, decode_step
from minfer.bench.sample import Sample
from minfer.bench.shares import shares
from minfer.bench.workloads import decode, mixed
from minfer.course.lab.tiny import tiny_model

X = torch.rand(4, 6)
HEADS = torch.rand(1, 2, 3, 8)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: F.linear(X, X), {"products": 1}),
        (lambda: F.linear(X, X, X[:, 0]), {"products": 1}),
        (lambda: X.unsqueeze(0) @ X.t(), {"products": 1}),
        (lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS), {"attention": 1}),
        (lambda: X.index_select(0, torch.tensor([1])), {"cache": 1}),
        (lambda: F.embedding(torch.tensor([1]), X), {"other": 1}),
        (lambda: (X + X).relu(), {"other": 2}),
        (lambda: X.view(2, 12).transpose(0, 1)[1:].float(), {}),  # nothing moves
        (lambda: X.t().contiguous(), {"other": 1}),
    ],
)
def test_a_call_is_counted_once_and_by_its_kind(call, wanted):
    assert dict(Operators.of(call).calls) == wanted


def test_only_what_is_inside_the_label_is_counted_where_one_is_given():
    def run():
        X.exp()
        with torch.profiler.record_function("here"):
            X.exp()
            F.linear(X, X)

    seen = Operators.of(run, "here")
    assert dict(seen.calls) == {"other": 1, "products": 1}
    assert 0 < seen.seconds["products"] < seen.within


def test_the_seconds_of_a_call_within_a_call_are_not_added_twice():
    large = torch.rand(1, 400, 400)

    def run():
        with torch.profiler.record_function("here"):
            large @ large  # a matmul that calls a bmm

    seen = Operators.of(run, "here")
    assert 0 < seen.seconds["products"] < seen.within


@pytest.mark.parametrize("batch", [1, 8])
def test_fusion_leaves_four_products_of_seven_in_a_layer_and_fewer_calls_in_all(batch):
    model = tiny_model("llama", 17)
    layers = model.config.num_layers
    plain = decode_step(EngineContestant(5, model.module(torch.float32), num_blocks=64).engine, batch).calls
    fused = decode_step(EngineContestant(7, model.module(torch.float32), num_blocks=64, compiler="none").engine, batch)
    assert plain["products"] == 7 * layers + 1
    assert fused.calls["products"] == 4 * layers + 1
    assert fused.calls["attention"] == plain["attention"]
    assert fused.calls["cache"] == plain["cache"] == 4 * layers  # keys and values, written and gathered


def test_the_table_of_operators_has_a_row_for_each_engine_and_batch():
    made = count("tiny", "float32", ["phase 5", "phase 7, fused"])
    assert made.head == ["", *KINDS, "in all"]
    assert [row[0] for row in made.rows] == [
        f"{name}, batch {batch}" for name in ("phase 5", "phase 7, fused") for batch in BATCHES
    ]
    assert all(int(row[-1]) == sum(map(int, row[1:-1])) for row in made.rows)


@pytest.mark.parametrize("phase", [4, 5])
def test_shares_add_up_to_the_forward_and_leave_the_engine_as_it_was(phase):
    contestant = EngineContestant(phase, tiny_model("llama", 17).module(torch.float32))
    workload = decode(tiny_model("llama", 17).config.vocab_size, 3, prompt=4, new=5)
    made = shares(contestant, workload)
    assert made["steps"] == 5
    assert min(made.values()) > 0
    assert made["products_s"] + made["attention_s"] + made["rest_s"] == pytest.approx(made["forward_s"])
    assert "forward" not in vars(contestant.engine)


def test_the_bound_is_what_the_products_alone_would_take():
    row = {"steps": 3, "forward_s": 4.0, "products_s": 2.0, "attention_s": 1.0, "rest_s": 1.0}
    workload = mixed(100)
    slow = Sample([[1.0] * workload.output_tokens], workload.output_tokens / 50)
    made = {
        "parts": [entry(workload, {"transformers x": [slow]})],
        "shares": {"workload": "mixed", "rows": {"phase 5": row}},
    }
    assert table.where_time_goes(made["shares"]).rows == [["phase 5", "3", "4.0", "50", "25", "25"]]
    reached = workload.output_tokens / 2
    assert table.bounds(made) == [
        f"mixed: if all but the products cost nothing, phase 5 would reach {reached:.0f} tokens/s"
        f" = {reached / 50:.2f} × transformers x"
    ]
