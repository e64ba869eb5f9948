"""Buckets, what is recorded of them, what it takes, and what goes with the engine."""

import gc
import weakref

import pytest
import torch

from minfer.core.errors import DeviceError, OptionsError
from minfer.core.options import make_options
from minfer.course.machines.simulated import SimulatedDevice
from minfer.phase8 import Bucket, Buckets, Engine, GraphOptions
from minfer.phase8.buckets import doubling, gathered_bytes


def engine(lab, model=None, **options):
    module = (model or lab.model()).module()
    given = {"device": SimulatedDevice(), "block_size": 4, "num_blocks": 20, "max_batch": 4, **options}
    return Engine(module, None, make_options(GraphOptions, given))


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (17, [1, 2, 4, 8, 16, 17])],
)
def test_sizes_double_and_the_last_is_exact(limit, sizes):
    assert doubling(limit) == sizes


def test_a_step_gets_the_smallest_bucket_that_it_fits():
    buckets = Buckets(rows=6, width=10, most_blocks=60)
    for rows in range(1, 7):
        for width in range(1, 11):
            bucket = buckets.holding(rows, width)
            assert bucket == Bucket(*(min(s for s in doubling(most) if s >= n) for n, most in ((rows, 6), (width, 10))))
    assert buckets.holding(7, 1) is None
    assert buckets.holding(1, 11) is None


def test_a_bucket_that_gathers_too_much_is_not_recorded():
    buckets = Buckets(rows=4, width=8, most_blocks=16)
    assert buckets.holding(2, 8) == Bucket(2, 8)
    assert buckets.holding(3, 5) is None
    assert (buckets.most_rows, buckets.most_blocks) == (4, 16)
    none = Buckets(rows=4, width=8, most_blocks=0)
    assert (none.largest_first, none.most_rows, none.most_blocks, none.holding(1, 1)) == ([], 0, 0, None)


def test_the_largest_is_recorded_first_beside_which_the_others_are(lab, monkeypatch):
    recorded = []
    record = SimulatedDevice.graph

    def watched(device, work, beside=None):
        recorded.append((work.args[-1].blocks, beside, record(device, work, beside)))
        return recorded[-1][2]

    monkeypatch.setattr(SimulatedDevice, "graph", watched)
    made = engine(lab)
    sizes = [blocks for blocks, _, _ in recorded]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == len(made.buckets.largest_first) == made.graph_usage()["graphs"] == 3 * 5  # 11 blocks are wide
    assert [beside for _, beside, _ in recorded] == [None] + [recorded[0][2]] * (len(sizes) - 1)


def test_recording_leaves_nothing_in_the_pool(lab):
    assert not engine(lab).cache.pool.any()


def test_graphs_are_no_wider_than_the_pool(lab):
    assert engine(lab, num_blocks=3).buckets.widths == [1, 2, 3]


def test_a_pool_that_leaves_no_room_for_graphs_is_refused(lab):
    config = lab.model().config
    pool = 21 * 4 * config.kv_numbers_per_token * 8
    per_block = gathered_bytes(config, 4, torch.float64)
    said = r"^graphs of up to 4 rows need about [\d,]+ bytes beside the pool of 20 blocks, [\d,]+ are free: lower g"

    class Shrinking(SimulatedDevice):
        """Free memory falls by the pool."""

        asked = 0

        def free_memory(self):
            self.asked += 1
            return 8 * 44 * per_block if self.asked < 3 else 40 * per_block

    assert pool < 8 * 44 * per_block
    with pytest.raises(OptionsError, match=said):
        engine(lab, device=Shrinking())
    assert engine(lab, device=SimulatedDevice(free=8 * 44 * per_block)).buckets.most_blocks == 44


@pytest.mark.parametrize("value", [-1, True, 1.5, "4"])
def test_a_graph_batch_that_is_no_number_of_rows_is_refused(value):
    with pytest.raises(OptionsError, match=r"^graph_batch = .*: give an integer of at least 0"):
        make_options(GraphOptions, {"graph_batch": value})


def test_a_graph_batch_above_the_batch_is_refused():
    with pytest.raises(OptionsError, match=r"^graph_batch = 5 is above max_batch = 4: no step has so many rows"):
        make_options(GraphOptions, {"graph_batch": 5, "max_batch": 4})


def test_a_model_that_reads_a_value_is_refused_with_what_to_do(lab):
    model = lab.scripted(3, [9] * 9, fail_at=30)  # looks at its positions on the host
    options = {"device": SimulatedDevice(), "num_blocks": 8, "block_size": 4, "max_batch": 2}
    with pytest.raises(DeviceError, match=r"^a decode step of 2 rows and 8 blocks cannot be recorded as a graph: __bo"):
        Engine(model, None, make_options(GraphOptions, options))
    without = Engine(model, None, make_options(GraphOptions, {**options, "graph_batch": 0}))
    assert without.generate([[5, 6, 7]], lab.params(3))[0].token_ids == [9] * 3


def test_logits_keep_the_dtype_that_the_model_gives_them(lab):
    class Wide(torch.nn.Module):
        """Weights in 16 bits, logits in 32, as a head may have it."""

        def __init__(self, inner):
            super().__init__()
            self.inner, self.config = inner, inner.config

        def forward(self, *inputs):
            return self.inner(*inputs).float() * (1 + 2**-20)

    module = Wide(lab.model().module(torch.bfloat16))
    options = {"num_blocks": 20, "block_size": 4, "max_batch": 4, "device": SimulatedDevice(), "compiler": "none"}
    made = Engine(module, None, make_options(GraphOptions, options))
    made.generate([[5, 6, 7]], lab.params(4))
    assert made.graph_usage()["replays"] == 3
    assert made.graphs.buffers.logits.dtype == torch.float32


def test_nothing_of_an_engine_outlives_it(lab):
    made = engine(lab)
    made.generate([[5, 6, 7]], lab.params(4))
    gone = [weakref.ref(one) for one in (made.cache, made.graphs, made.graphs.buffers, *made.graphs.graphs.values())]
    gc.disable()
    try:
        del made
        assert [one() for one in gone] == [None] * len(gone)
    finally:
        gc.enable()
