"""Where two results differ first, in words and a few numbers; no dump of tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

TOLERANCE = 1e-8
"""Two right algorithms differ by 1e-12 in float64; almost every mistake by more than 1e-3."""


def difference(got: Any, want: Any, what: str = "step", tolerance: float = TOLERANCE) -> tuple[str, str] | None:
    """(expected, got) in words where the two differ, None where they agree; arrays agree within `tolerance`.

    Arrays of shape `(rows, width)` are compared row by row, `what` names a row; anything else item by item or whole.
    """
    if isinstance(want, np.ndarray):
        return _array_difference(np.asarray(got), want, what, tolerance)
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return _list_difference(got, want)
    if type(got) is not type(want) and not isinstance(got, type(want)):
        return _short(want), f"{_short(got)} (of type {type(got).__name__}, not {type(want).__name__})"
    return None if got == want else (_short(want), _short(got))


def _array_difference(got: np.ndarray, want: np.ndarray, what: str, tolerance: float) -> tuple[str, str] | None:
    if got.shape != want.shape:
        return f"an array of shape {want.shape}", f"one of shape {got.shape}"
    if not want.size:
        return None
    rows = np.abs(got.astype(np.float64) - want).reshape(len(want), -1).max(axis=1)
    wrong = np.flatnonzero(~(rows <= tolerance))  # a NaN is wrong too
    if not wrong.size:
        return None
    first, all_wrong = int(wrong[0]), len(wrong) == len(rows)
    agree = "none agrees" if all_wrong else f"{len(rows) - len(wrong)} of {len(rows)} agree"
    before = "" if not first else f", {what} 0 is right" if first == 1 else f", {what}s 0 to {first - 1} are right"
    worst = np.nanmax(rows) if not np.isnan(rows).all() else float("nan")
    return (
        f"|d| <= {tolerance:g} in each of {len(rows)} {what}s",
        f"|d| = {rows[first]:.2g} first at {what} {first}{before}; {agree}, the largest |d| is {worst:.2g}",
    )


def _list_difference(got: Sequence[Any], want: Sequence[Any]) -> tuple[str, str] | None:
    if list(got) == list(want):
        return None
    pairs = zip(got, want, strict=False)
    first = next((i for i, (mine, right) in enumerate(pairs) if mine != right), min(len(got), len(want)))
    return _around(want, first), f"{_around(got, first)}: the first difference is at index {first}"


def _around(items: Sequence[Any], index: int, width: int = 5) -> str:
    start = max(0, index - 2)
    shown = ", ".join(_short(item) for item in items[start : start + width])
    left, right = "… " if start else "", " …" if start + width < len(items) else ""
    return f"{len(items)} items [{left}{shown}{right}]"


def _short(value: Any, limit: int = 120) -> str:
    if isinstance(value, set):
        return f"{{{', '.join(sorted(_short(item) for item in value))}}}"
    text = value.__name__ if isinstance(value, type) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
