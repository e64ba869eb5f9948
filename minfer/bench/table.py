"""Tables made from a ledger: for the terminal, and as Markdown for the README."""

from collections.abc import Callable
from typing import Any

from rich.table import Table

from minfer.bench import full_grid
from minfer.bench.claims import PEER, claims, median, throughput
from minfer.bench.grid import Grid
from minfer.bench.ledger import runs
from minfer.bench.sample import Sample, Spread

FACTS = {"tokens fed": ("tokens_fed", 1.0), "host %": ("host_share", 100.0), "KV unused %": ("kv_unused", 100.0)}
NONE = "–"
STEP = ("floor", "products", "attention", "between", "head", "host", "rest", "step")


def terminal(ledger: dict[str, Any]) -> list[Table | str]:
    """What a benchmark prints."""
    return [*(grid.rich() for grid in grids(ledger)), *sentences(ledger)]


def markdown(ledger: dict[str, Any]) -> str:
    """The same for the README."""
    where = ledger["environment"]
    lines = [
        f"`{ledger['command']}` on {where['cpu']} ({where['capability']}), {where['threads']} threads, "
        f"torch {where['torch']}, {where['utc'][:10]}; median (least–greatest) of interleaved runs:",
    ]
    for grid in grids(ledger):
        lines += ["", *grid.markdown()]
    return "\n".join([*lines, "", *(f"- {said}" for said in sentences(ledger))])


def grids(ledger: dict[str, Any]) -> list[Grid]:
    """One table per workload, then what ran and where the time goes, where the ledger has that."""
    if ledger.get("kind") == "table":
        return full_grid.grids(ledger)
    made = [made for part in ledger["parts"] for made in (grid(part), *parts_of_steps(part))]
    if "ran" in ledger:
        made.append(what_ran(ledger["ran"]))
    if "shares" in ledger:
        made.append(where_time_goes(ledger["shares"]))
    return made


def sentences(ledger: dict[str, Any]) -> list[str]:
    """What the ledger says in words."""
    if ledger.get("kind") == "table":
        return full_grid.sentences(ledger)
    said = claims(ledger)
    if "shares" in ledger:
        said += bounds(ledger)
    if "loading" in ledger:
        said.append(loading(ledger["loading"]))
    if "cold_start_s" in ledger:
        spread = Spread.of(ledger["cold_start_s"])
        said.append(f"cold start: first token of `minfer generate` with the embedded model after {spread} s")
    if not ledger.get("finished", True):
        said.append("it is not finished: the same command goes on with it")
    return said


def grid(part: dict[str, Any]) -> Grid:
    """A workload's rows: median (least–greatest) of each figure, and the facts that any row has."""
    shown = columns(part)
    known = {fact for row in part["rows"] for sample in runs(row) for fact in sample.facts}
    facts = {head: (key, factor) for head, (key, factor) in FACTS.items() if key in known}
    most = max(len(row["samples"]) for row in part["rows"])
    rows = []
    for row in part["rows"]:
        samples = runs(row)
        if not samples:
            reason = row.get("absent", "not run yet")
            rows.append([f"{row['name']}: n/a ({reason})", *[NONE] * (len(shown) + len(facts))])
            continue
        name = row["name"] + (f", {len(samples)} runs" if len(samples) < most else "")
        figures = [str(Spread.of(map(figure, samples))) for figure in shown.values()]
        rows.append([name, *figures, *(_fact(samples, key, factor) for key, factor in facts.values())])
    return Grid(part["about"], ["", *shown, *facts], rows)


def columns(part: dict[str, Any]) -> dict[str, Callable[[Sample], float]]:
    """The figures of a workload's table: first what its rows are compared by; decoding also as seen from outside."""
    head, figure = throughput(part)
    made = {head: figure}
    if part.get("figure") == "decode":
        made["with prompts"] = lambda sample: sample.output_throughput
    made["TTFT ms"] = lambda sample: sample.ttft_ms
    if part.get("figure") != "prefill":
        made["TPOT ms"] = lambda sample: sample.tpot_ms
    return made


def _fact(samples: list[Sample], key: str, factor: float) -> str:
    values = [factor * sample.facts[key] for sample in samples if key in sample.facts]
    return f"{Spread.of(values).median:,.{0 if key == 'tokens_fed' else 1}f}" if values else NONE


def what_ran(ran: dict[str, dict[str, Any]]) -> Grid:
    """What each row's figures belong to: the weights' bytes, the kernels, what was compiled."""
    rows = [
        [name, f"{facts['weight_bytes'] / 1e6:.0f}", facts.get("compiled", NONE), facts.get("kernels", NONE)]
        for name, facts in ran.items()
    ]
    return Grid("what ran", ["", "weights MB", "compiled", "kernels"], rows)


def parts_of_steps(part: dict[str, Any]) -> list[Grid]:
    """What a step's milliseconds go to in each row, where that was looked into."""
    rows = [
        [row["name"], *(_milliseconds(row["step"].get(f"{name}_s")) for name in STEP)]
        for row in part["rows"]
        if "step" in row
    ]
    title = (
        f"{part['workload']}: a step's time, ms (floor: least of products, head; parts: profiled; step: counted runs)"
    )
    return [Grid(title, ["", *STEP], rows)] if rows else []


def _milliseconds(seconds: float | None) -> str:
    """A dash where an older ledger does not say."""
    return NONE if seconds is None else f"{1000 * seconds:.1f}"


def where_time_goes(shares: dict[str, Any]) -> Grid:
    """The parts of the forward's time, from one profiled run of each engine."""
    rows = []
    for name, row in shares["rows"].items():
        parts = [f"{100 * row[key] / row['forward_s']:.0f}" for key in ("products_s", "attention_s", "rest_s")]
        rows.append([name, f"{row['steps']}", f"{row['forward_s']:.1f}", *parts])
    head = ["", "steps", "forward s", "products %", "attention %", "rest %"]
    return Grid(f"where the time goes ({shares['workload']}, one profiled run)", head, rows)


def bounds(ledger: dict[str, Any]) -> list[str]:
    """What an engine would reach if only its products took time, in words."""
    shares = ledger["shares"]
    part = next(part for part in ledger["parts"] if part["workload"] == shares["workload"])
    peers = [row["name"] for row in part["rows"] if row["name"].startswith(PEER)]
    said = []
    for name, row in shares["rows"].items():
        bound = part["output_tokens"] / row["products_s"]
        times = "".join(f" = {bound / median(part, peer):.2f} × {peer}" for peer in peers)
        said.append(
            f"{part['workload']}: if all but the products cost nothing, {name} would reach {bound:.0f} tokens/s{times}"
        )
    return said


def loading(bytes_of: dict[str, int]) -> str:
    """The peak of loading beside its bound, in words."""
    peak, weights, largest = (bytes_of[key] / 1e6 for key in ("peak", "weights", "largest"))
    bound = peak / (weights + largest)
    return (
        f"loading: peak {peak:.0f} MB for {weights:.0f} MB of weights and a largest tensor of {largest:.0f} MB "
        f"({bound:.2f} × their sum)"
    )
