"""Tables made from a ledger: for the terminal, and as Markdown for the README."""

from collections.abc import Callable
from typing import Any

from rich.table import Table

from minfer.bench.ledger import runs
from minfer.bench.sample import Sample, Spread

COLUMNS: dict[str, Callable[[Sample], float]] = {
    "tokens/s": lambda sample: sample.output_throughput,
    "TTFT ms": lambda sample: sample.ttft_ms,
    "TPOT ms": lambda sample: sample.tpot_ms,
}
FACTS = {"tokens fed": ("tokens_fed", 1.0), "host %": ("host_share", 100.0), "KV unused %": ("kv_unused", 100.0)}
HEAD = ["", *COLUMNS, *FACTS]


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table: its name, then median (least–greatest) of each figure; "–" where it has none."""
    samples = runs(row)
    name = row["name"] + (f", {len(samples)} runs" if len(samples) < 5 else "")
    made = [name, *(str(Spread.of(map(figure, samples))) for figure in COLUMNS.values())]
    for key, factor in FACTS.values():
        values = [factor * sample.facts[key] for sample in samples if key in sample.facts]
        made.append(f"{Spread.of(values).median:,.{0 if key == 'tokens_fed' else 1}f}" if values else "–")
    return made


def ratio(part: dict[str, Any], name: str, other: str) -> Spread:
    """How many times the tokens/s of `other` the row `name` reaches, run by run of one interleaved series."""
    by_name = {row["name"]: runs(row) for row in part["rows"]}
    pairs = zip(by_name[name], by_name[other], strict=False)  # a slow one has fewer runs, from the first rounds
    return Spread.of(mine.output_throughput / theirs.output_throughput for mine, theirs in pairs)


def ratios(ledger: dict[str, Any]) -> list[str]:
    """The comparisons that the phases are about, in words."""
    pairs = [("single", "phase 3", "phase 1"), ("single", "phase 3", "transformers")]
    pairs += [("mixed", "phase 5", "transformers"), ("mixed", "phase 5", "phase 3"), ("mixed", "phase 5", "phase 4")]
    pairs += [("prefix", "phase 5, sharing prefixes", "phase 5, not sharing")]
    said = []
    for workload, name, other in pairs:
        part = next(part for part in ledger["parts"] if part["workload"] == workload)
        against = [row["name"] for row in part["rows"] if row["name"].startswith(other)]
        said += [f"{workload}: {name} makes {ratio(part, name, full)} times the tokens/s of {full}" for full in against]
    return said


def loading(ledger: dict[str, Any]) -> str:
    """The peak of loading beside its bound, in words."""
    peak, weights, largest = (ledger["loading"][key] / 1e6 for key in ("peak", "weights", "largest"))
    bound = peak / (weights + largest)
    return (
        f"loading: peak {peak:.0f} MB for {weights:.0f} MB of weights and a largest tensor of {largest:.0f} MB "
        f"({bound:.2f} × their sum)"
    )


def cold_start(ledger: dict[str, Any]) -> str:
    """The time to the first token of a new process, in words."""
    return f"cold start: first token of `minfer generate` with the embedded model after {_spread(ledger)} s"


def _spread(ledger: dict[str, Any]) -> Spread:
    return Spread.of(ledger["cold_start_s"])


def terminal(ledger: dict[str, Any]) -> list[Table | str]:
    """What `minfer bench phases` prints."""
    shown: list[Table | str] = []
    for part in ledger["parts"]:
        table = Table(title=part["about"], title_justify="left")
        for number, head in enumerate(HEAD):
            table.add_column(head, justify="right" if number else "left", min_width=0 if number else 20)
        for row in part["rows"]:
            table.add_row(*cells(row))
        shown.append(table)
    return [*shown, *ratios(ledger), loading(ledger), cold_start(ledger)]


def markdown(ledger: dict[str, Any]) -> str:
    """The same for the README."""
    where = ledger["environment"]
    lines = [
        f"`{ledger['command']}` on {where['cpu']} ({where['capability']}), {where['threads']} threads, "
        f"torch {where['torch']}, {where['utc'][:10]}; median (least–greatest) of interleaved runs:",
    ]
    for part in ledger["parts"]:
        lines += ["", f"**{part['about']}**", "", _line(HEAD), _line(["---", *["---:"] * (len(HEAD) - 1)])]
        lines += [_line(cells(row)) for row in part["rows"]]
    return "\n".join([*lines, "", *(f"- {said}" for said in [*ratios(ledger), loading(ledger), cold_start(ledger)])])


def _line(items: list[str]) -> str:
    return f"| {' | '.join(items)} |"
