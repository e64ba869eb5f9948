"""Names of schemes, as options and files give them."""

from collections.abc import Callable

from minfer.core.errors import OptionsError, did_you_mean
from minfer.phase6.int4 import GROUP_SIZES, Int4
from minfer.phase6.schemes import Float8, Half, Int8, Scheme

SCHEMES: dict[str, Callable[[int], Scheme]] = {
    "fp16": lambda group_size: Half(),
    "int8": lambda group_size: Int8(),
    "int4": Int4,
    "fp8": lambda group_size: Float8(),
}
"""Name -> the scheme, given the group size that only int4 uses."""


def find_scheme(name: str, group_size: int = GROUP_SIZES[0]) -> Scheme:
    """The scheme of that name. Raises `OptionsError` that lists them, or the group sizes."""
    if name not in SCHEMES:
        raise OptionsError(
            f"quantization {name!r} is unknown{did_you_mean(str(name), SCHEMES, 1)}: use {', '.join(SCHEMES)}"
        )
    if group_size not in GROUP_SIZES:
        raise OptionsError(f"group_size = {group_size!r}: use {', '.join(map(str, GROUP_SIZES))}")
    return SCHEMES[name](group_size)
