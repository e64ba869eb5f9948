"""WeightFormat: what one weight costs, and what its scales cost beside it."""

from dataclasses import dataclass

from minfer.core.errors import OptionsError, did_you_mean

SCALE_BYTES = 2  # scales and zero points are kept in bfloat16


@dataclass(frozen=True)
class WeightFormat:
    """How the weights of a linear layer are stored: packed numbers of `bits`, and scales per group of a row.

    A weight matrix is (out, in), one row per output channel. A group is `group` neighbouring columns of a row, or the
    whole row (None); each has `numbers` of bfloat16 beside it: 1 is a scale, 2 a scale and a zero point. So int4 in
    groups of g costs 0.5 + 4/g bytes a weight, and int8 with a scale per output channel 1 + 2/columns.
    """

    name: str
    bits: int
    numbers: int = 0
    group: int | None = None

    @property
    def is_quantised(self) -> bool:
        """Whether only linear layers can have this format; the rest of the model then stays in 16 bits."""
        return self.numbers > 0

    def raw_bytes(self, weights: int) -> int:
        """Bytes of the packed numbers alone."""
        return -(-weights * self.bits // 8)

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix with its scales; rows start at whole bytes, and a last group may be shorter."""
        groups = -(-columns // (self.group or columns))
        return rows * (self.raw_bytes(columns) + groups * self.numbers * SCALE_BYTES)


_FORMATS = (
    WeightFormat("float64", 64),
    WeightFormat("float32", 32),
    WeightFormat("float16", 16),
    WeightFormat("bfloat16", 16),
    WeightFormat("int8", 8, numbers=1),
    WeightFormat("fp8", 8, numbers=1),
    WeightFormat("int4-g128", 4, numbers=2, group=128),
    WeightFormat("int4-g64", 4, numbers=2, group=64),
    WeightFormat("int4-g32", 4, numbers=2, group=32),
)
FORMATS = {one.name: one for one in _FORMATS}
ALIASES = {"int4": "int4-g128"}


def find_format(name: str) -> WeightFormat:
    """The format of that name. Raises `OptionsError` that lists them."""
    known = FORMATS.get(ALIASES.get(name, name))
    if known is None:
        names = [*FORMATS, *ALIASES]
        raise OptionsError(f"dtype {name!r} is unknown{did_you_mean(name, names)}; weights can be {', '.join(names)}")
    return known
