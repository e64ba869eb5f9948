"""Right engines of another make, for phases 4 and 5."""

from tests.mutants.correct import Variant
from tests.mutants.left_padded import LeftPadded

VARIANTS = [
    Variant(4, LeftPadded),
]
