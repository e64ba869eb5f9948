"""The benchmark table's row of ranks: it must not slow the rows that it is compared with."""

import os

import torch

from minfer.bench.part_clock import PARTS
from minfer.bench.variants import VARIANTS, RanksContestant
from minfer.bench.workloads import batch
from minfer.core.device import Device


def share_now():
    return torch.get_num_threads(), os.sched_getaffinity(0)


def test_a_row_of_ranks_takes_its_share_of_the_machine_only_while_it_runs():
    before = share_now()
    variant = next(one for one in VARIANTS if one.ranks > 1)
    row = RanksContestant(variant, "tiny", Device.get("cpu"), max_batch=2, num_blocks=64)
    try:
        assert share_now() == before
        within, step = [], row.engine.step

        def watched():
            within.append(share_now())
            return step()

        row.engine.step = watched
        sample = row.run(batch(row.engine.config.vocab_size, 2, 6, 3, 0))
        assert len(sample.token_times) == 2
        parts = [seconds for name, seconds in sample.facts.items() if name in {f"{part}_s" for part in PARTS}]
        assert sample.facts["communication_s"] > 0
        assert sum(parts) < sample.facts["forward_s"]
        threads, cores = within[0]
        assert threads == max(1, before[0] // variant.ranks)
        assert len(before[1]) < variant.ranks or len(cores) == len(before[1]) // variant.ranks
        assert share_now() == before
    finally:
        row.close()
    assert share_now() == before
