"""Why two rows of a ledger differ: their measured times per token, and what each time goes to."""

from itertools import pairwise
from typing import Any

from minfer.bench.anatomy import terms
from minfer.bench.ledger import runs
from minfer.bench.sample import Sample
from minfer.core.errors import MinferError
from minfer.cost.cost_model import Terms
from minfer.cost.waterfall import ADVICE, MEANING, NAMES, Waterfall


def row_named(ledger: dict[str, Any], name: str) -> dict[str, Any]:
    """The row whose name is, or begins with, `name`, in any case. Raises `MinferError` for none, one without parts."""
    rows = [row for part in ledger["parts"] for row in part["rows"]]
    wanted = name.lower()
    found = [row for row in rows if row["name"].lower() == wanted]
    found = found or [row for row in rows if row["name"].lower().startswith(wanted)]
    if len(found) != 1:
        raise MinferError(f"{name!r} names {len(found)} rows: choose from {', '.join(row['name'] for row in rows)}")
    row = found[0]
    if "absent" in row:
        raise MinferError(f"{row['name']} was not measured: n/a ({row['absent']})")
    if "anatomy" not in row:
        raise MinferError(f"{row['name']} has no parts: only minfer bench table looks into rows, and not into peers")
    return row


def waterfall(ledger: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> Waterfall:
    """From one row to the other, in ms per output token."""
    rows = first, second
    times = [[milliseconds(sample) for sample in runs(row)] for row in rows]
    noise = max((max(each) - min(each)) / 2 for each in times)
    before, after = (milliseconds(middle(row)) for row in rows)
    return Waterfall.of(before, after, parts(ledger, first), parts(ledger, second), noise)


def parts(ledger: dict[str, Any], row: dict[str, Any]) -> Terms:
    """Of the row's middle run, in ms per output token."""
    return terms(row["anatomy"], middle(row), ledger["bandwidth"])


def middle(row: dict[str, Any]) -> Sample:
    """The run whose time is the median, or the one before: a run's parts add up, medians of parts would not."""
    found = sorted(runs(row), key=milliseconds)
    return found[(len(found) - 1) // 2]


def neighbours(ledger: dict[str, Any]) -> list[tuple[str, str, Waterfall]]:
    """Of each row and the next one that has parts."""
    rows = [row for row in ledger["parts"][0]["rows"] if "anatomy" in row and "absent" not in row]
    return [(one["name"], other["name"], waterfall(ledger, one, other)) for one, other in pairwise(rows)]


def milliseconds(sample: Sample) -> float:
    """A run's time per output token."""
    return 1000 / sample.output_throughput


def in_words(ledger: dict[str, Any], one: str, other: str, made: Waterfall) -> list[str]:
    """What changed, the largest part first; what the second row is bound by, and what to try."""
    first, second = row_named(ledger, one), row_named(ledger, other)
    change = f"{made.first:.2f} → {made.second:.2f} ms per output token ({made.difference:+.2f}"
    ratio = f"{made.first / made.second:.2f} × the tokens/s)"
    said = [f"{one} → {other}: {change}; {ratio}"]
    if made.is_noise:
        said.append(f"that is no more than runs of one row differ by ({made.noise:.2f} ms): nothing is to be explained")
    for name, change_ms in sorted(made.parts.items(), key=lambda part: -abs(part[1])):
        if abs(change_ms) >= 0.005 * made.first:
            said.append(f"  {change_ms:+8.2f} ms  {NAMES[name]}: {MEANING[name]}")
    share = f"{made.unexplained_share:.0%} of the difference"
    said.append(f"  {made.unexplained:+8.2f} ms  unexplained, {share}: what is in none of these parts")
    calls = [row["anatomy"]["calls"] for row in (first, second)]
    said.append(f"operators in a step: {calls[0]:.0f} → {calls[1]:.0f}")
    found = parts(ledger, second)
    bound = max(NAMES, key=lambda name: getattr(found, name))
    said.append(
        f"{other} is bound by {NAMES[bound]}, {getattr(found, bound) / made.second:.0%} of its time; to try next: "
        f"{ADVICE[bound]}"
    )
    return [*said, how(ledger, first, second)]


def how(ledger: dict[str, Any], *rows: dict[str, Any]) -> str:
    """Which parts are measured, and how; which is reckoned."""
    clocked = all("others_s" in run.facts for row in rows for run in runs(row))
    by = "by the clock, in the middle one of the counted runs" if clocked else "under the profiler, in shares"
    return f"measured {by}; weights read is reckoned: its bytes over {ledger['bandwidth'] / 1e9:.0f} GB/s"
