"""The table of a `minfer bench table` ledger, and what it says in words."""

from typing import Any

from minfer.bench.grid import Grid
from minfer.bench.ledger import runs
from minfer.bench.sample import Spread

SPEED = ["", "tokens/s", "TTFT ms", "of it queue", "token latency ms (ITL)", "p99", "TPOT ms", "predicted tokens/s"]
COST = ["", "weights + KV MB", "peak MB", "MBU %", "calls a step", "greedy match", "KL (nats)", "compiled", "kernels"]
NONE = "–"


def grids(ledger: dict[str, Any]) -> list[Grid]:
    """How fast the rows are; then what they took, and what really ran."""
    part = ledger["parts"][0]
    ran = [row for row in part["rows"] if "figures" in row]
    made = [Grid(part["about"], SPEED, [_speed(row) for row in part["rows"]])]
    return [*made, Grid("what it takes, and what ran", COST, [_cost(ledger, row) for row in ran])] if ran else made


def sentences(ledger: dict[str, Any]) -> list[str]:
    """How to read it, and how far off the predictions are."""
    said = [
        "tokens/s, TTFT (its median, and that of the wait in the queue) and TPOT: median (least–greatest) of the runs; "
        "token latency: median and p99 of all gaps between tokens (fewer than 100: the longest)",
        "peak: the most memory beside all that was there before, while loading or running; MBU: weights that the steps "
        "must read, of the memory's speed; greedy match: tokens as FP32's before the first other one",
    ]
    where = ledger["environment"]
    if where["load_at_start"] > where["cores"]:
        said.append(
            f"the machine was busy, load {where['load_at_start']:.1f} on {where['cores']} cores when it began: "
            "read ratios only"
        )
    if errors := [abs(_error(row)) for row in ledger["parts"][0]["rows"] if "predicted" in row]:
        mean, most = 100 * sum(errors) / len(errors), 100 * max(errors)
        said.append(f"predictions of the cost model are off by {mean:.0f} % on average, by {most:.0f} % at most")
    if not ledger.get("finished", True):
        said.append("it is not finished: the same command goes on with it")
    return said


def mbu(ledger: dict[str, Any], row: dict[str, Any]) -> float | None:
    """Model bandwidth utilisation: weights and KV that the steps must read, per second, over the memory's bandwidth."""
    facts = row.get("anatomy")
    if not facts or not ledger.get("bandwidth"):
        return None
    duration = Spread.of(sample.duration for sample in runs(row)).median
    return facts["steps"] * facts["product_bytes"] / duration / ledger["bandwidth"]


def _error(row: dict[str, Any]) -> float:
    return row["predicted"]["output_throughput"] / row["figures"]["output_throughput"] - 1


def _speed(row: dict[str, Any]) -> list[str]:
    samples = runs(row)
    if "absent" in row or not samples:
        return [f"{row['name']}: n/a ({row.get('absent', 'not run yet')})", *[NONE] * (len(SPEED) - 1)]
    figures, predicted = row.get("figures", {}), row.get("predicted")
    return [
        row["name"],
        str(Spread.of(sample.output_throughput for sample in samples)),
        str(Spread.of(sample.ttft_ms for sample in samples)),
        _number(figures, "median_queue_ms"),
        _number(figures, "median_itl_ms"),
        _number(figures, "p99_itl_ms"),
        str(Spread.of(sample.tpot_ms for sample in samples)),
        NONE if not predicted else f"{predicted['output_throughput']:.1f} ({100 * _error(row):+.0f} %)",
    ]


def _cost(ledger: dict[str, Any], row: dict[str, Any]) -> list[str]:
    memory, effective = row.get("memory", {}), row.get("effective", {})
    used, quality, anatomy = mbu(ledger, row), row.get("quality"), row.get("anatomy")
    peak = max(memory.get("loading_bytes", 0), memory.get("running_bytes", 0))
    linear = f"linear, {effective['dtype']}" if "dtype" in effective else NONE
    return [
        row["name"] + (f", {effective['ranks']}" if "ranks" in effective else ""),
        _megabytes(effective.get("weight_bytes"), memory.get("kv_bytes")),
        _megabytes(peak),
        NONE if used is None else f"{100 * used:.0f}",
        NONE if not anatomy else f"{anatomy['calls']:,.0f}",
        NONE if not quality else f"{quality['match']:.1f} of {quality['of']}",
        NONE if not quality else f"{max(0.0, quality['divergence']):.4f}",
        effective.get("compiled", NONE),
        effective.get("kernels", linear),
    ]


def _number(figures: dict[str, Any], name: str) -> str:
    value = figures.get(name)
    return NONE if value is None else f"{value:.{0 if value >= 100 else 1}f}"


def _megabytes(*parts: int | None) -> str:
    return " + ".join(f"{part / 1e6:.0f}" for part in parts if part is not None) or NONE
