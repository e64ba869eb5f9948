"""Phase 9's tests ask for right answers and for steps that overlap, and not for the reference's way to them."""

import pytest

from tests.meta.in_process import grade
from tests.mutants.correct9 import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_right_engine_of_another_make_passes(variant, lab):
    shown = grade(variant.engine_cls, variant.phase, "P9", seed=lab.seed)
    failed = {name: message for name, message in shown.items() if message}
    assert not failed, next(iter(failed.values()))
