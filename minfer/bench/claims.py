"""Claims: the comparisons that the phases are about, run by run of one interleaved series, and their targets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from minfer.bench.ledger import runs
from minfer.bench.sample import Sample, Spread

PEER = "transformers"  # its rows are named with more behind it


@dataclass(frozen=True)
class Claim:
    """How many times the throughput of `other` the best of `names` reaches."""

    workload: str
    names: tuple[str, ...]
    other: str
    target: float | None = None


HALVES = ("phase 7 fp32", "phase 7 fp16")
FP16, ROWS = ("phase 7 fp16",), ("phase 7 int8 rows",)
INT8 = ("phase 7 int8", "phase 7 int8 rows")
CLAIMS = [
    Claim("single", ("phase 3",), "phase 1", 5),
    Claim("single", ("phase 3",), PEER, 1.2),
    Claim("mixed", ("phase 5",), PEER, 3),
    Claim("mixed", ("phase 5",), "phase 3", 4),
    Claim("mixed", ("phase 5",), "phase 4", 1.3),
    Claim("prefix", ("phase 5, sharing prefixes",), "phase 5, not sharing"),
    Claim("decode-1", HALVES, PEER, 3),
    Claim("decode-1", HALVES, "llama.cpp f16", 0.7),
    Claim("decode-1", INT8, "phase 7 fp16", 1.1),
    Claim("decode-1", INT8, "llama.cpp q8_0", 0.6),
    *(
        Claim(f"decode-{count}", names, other, target)
        for count in (16, 32)
        for names, other, target in (
            (FP16, PEER, 4),
            (FP16, "llama.cpp f16", 1.1),
            (ROWS, "llama.cpp q8_0", 1.5),
            (ROWS, "phase 7 fp16", 1.3),
        )
    ),
    Claim("prefill", FP16, "llama.cpp f16", 1),
    Claim("prefill", FP16, PEER, 1.3),
    Claim("prefill", INT8, "llama.cpp q8_0", 1.3),
]


def throughput(part: dict[str, Any]) -> tuple[str, Callable[[Sample], float]]:
    """What the contestants of a ledger's part are compared by: its name and how a sample gives it."""
    if part.get("figure") == "decode":
        return "decode tokens/s", lambda sample: sample.decode_throughput
    if part.get("figure") == "prefill":
        return "prompt tokens/s", lambda sample: part["input_tokens"] / sample.prefilled_s
    return "tokens/s", lambda sample: sample.output_throughput


def ratio(part: dict[str, Any], name: str, other: str) -> Spread:
    """How many times the throughput of `other` the row `name` reaches."""
    _, figure = throughput(part)
    by_name = {row["name"]: runs(row) for row in part["rows"]}
    pairs = zip(by_name[name], by_name[other], strict=False)  # a slow one has fewer runs, from the first rounds
    return Spread.of(figure(mine) / figure(theirs) for mine, theirs in pairs)


def claims(ledger: dict[str, Any]) -> list[str]:
    """The claims that a ledger has rows for, in words."""
    return [said for claim in CLAIMS for part in ledger["parts"] for said in _said(claim, part)]


def _said(claim: Claim, part: dict[str, Any]) -> Iterator[str]:
    measured = [row["name"] for row in part["rows"] if row["samples"]]
    names = [name for name in claim.names if name in measured]
    if part["workload"] != claim.workload or not names:
        return
    best = max(names, key=lambda name: median(part, name))
    noun, _ = throughput(part)
    target = f" (target: {claim.target:g})" if claim.target else ""
    for other in measured:
        if other == claim.other or (claim.other == PEER and other.startswith(PEER)):
            yield f"{claim.workload}: {best} makes {ratio(part, best, other)} times the {noun} of {other}{target}"


def median(part: dict[str, Any], name: str) -> float:
    """A row's median throughput."""
    _, figure = throughput(part)
    return Spread.of(figure(sample) for row in part["rows"] if row["name"] == name for sample in runs(row)).median
