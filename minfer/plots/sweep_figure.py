"""A sweep as a figure: what each request waits for a token against what all of them get. Needs the extra `plots`."""

from pathlib import Path
from typing import Any

from minfer.bench.sweep import measured
from minfer.core.errors import MinferError
from minfer.plots.run_figure import check_format

COLOURS = ("#4e79a7", "#e15759", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2")


def draw_sweep(ledger: dict[str, Any], path: Path) -> None:
    """Write the figure of a sweep's ledger to `path`. Raises `MinferError` as `check_format`."""
    check_format(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(ledger["parts"][0]["rows"]):
        _line(axes, ledger, row["name"], COLOURS[number % len(COLOURS)])
    axes.set(xlabel="ms per token of each request (TPOT)", ylabel="tokens/s of all requests, while decoding")
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    axes.set_title(f"{ledger['model']}, {ledger['dtype']}, {ledger['device']}; numbers: requests at once", fontsize=11)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise MinferError(f"cannot draw {path}: {error.strerror}") from error


def _line(axes: Any, ledger: dict[str, Any], name: str, colour: str) -> None:
    rows = [(part["batch"], row) for part in ledger["parts"] for row in part["rows"] if row["name"] == name]
    points = [measured(row) for _, row in rows]
    _plot(axes, points, color=colour, marker="o", label=name)
    for (batch, _), at in zip(rows, points, strict=True):
        place = (at["tpot_ms"], at["throughput"])
        axes.annotate(str(batch), place, (6, -11), textcoords="offset points", fontsize=9, color=colour)
    predicted = [row["predicted"] for _, row in rows if row.get("predicted")]
    if predicted:
        _plot(axes, predicted, color=colour, marker="x", linestyle="--", alpha=0.6, label=f"{name}, predicted")


def _plot(axes: Any, points: list[dict[str, float]], **style: Any) -> None:
    axes.plot([at["tpot_ms"] for at in points], [at["throughput"] for at in points], **style)
