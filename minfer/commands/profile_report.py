"""ProfileReport: latencies, steps, kernels and memory as tables, with their definitions beside the numbers."""

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from minfer.core.measures.card_usage import CardUsage
from minfer.phase11 import Limits, MemoryParts, Profile
from minfer.phase11.laps import PARTS

LATENCIES = {
    "ttft_ms": ("TTFT", "arrival → first token"),
    "queue_ms": ("  queue", "arrival → first step that has it"),
    "prefill_ms": ("  prefill", "the rest of TTFT: steps for its prompt"),
    "first_sample_ms": ("  first sample", "first token drawn from its logits"),
    "tpot_ms": ("TPOT", "(last − first token) / (n − 1)"),
    "itl_ms": ("ITL", "gaps between tokens, all requests'"),
    "e2el_ms": ("E2E", "arrival → last token"),
}
RATES = {
    "request_throughput": ("requests/s", "over the time from the first arrival to the last token"),
    "output_throughput": ("output tokens/s", "all requests together"),
    "total_token_throughput": ("tokens/s", "prompts and answers"),
}
FEWEST = {"p95": 20, "p99": 100}
"""Values that a percentile needs; with fewer it is the greatest."""


class ProfileReport:
    """Prints to a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def print_latencies(self, figures: dict[str, Any], limits: Limits) -> None:
        """Latencies, rates and goodput."""
        table = _table("Latency (ms)", "mean", "P50", "P95", "P99", "max", "of", "is")
        for key, (name, meaning) in LATENCIES.items():
            spread = figures[key]
            cells = [_number(spread[column]) + _mark(spread, column) for column in ("mean", "p50", "p95", "p99", "max")]
            table.add_row(name, *cells, str(spread["count"]), meaning)
        self.console.print(table)
        self.console.print("* the greatest: for a P95 one needs 20 values, for a P99 100", style="dim")
        rates = _table(f"{figures['completed']} requests in {figures['duration']:.3f} s", "", "is")
        for key, (name, meaning) in RATES.items():
            rates.add_row(name, _number(figures[key]), meaning)
        rates.add_row("tokens/s of a user", _number(figures["tokens_per_s_per_user"]["p50"]), "1 / TPOT, the median's")
        met = f"requests/s within {limits}: {figures['met']:.0%} of them"
        rates.add_row("goodput", _number(figures["request_goodput"]), met)
        rates.add_row("warm-up", f"{figures['warmup_s']:.2f} s", "compiling, recording, allocating: in no latency")
        self.console.print(rates)

    def print_steps(self, steps: np.ndarray, block_size: int, bandwidth: float, usage: CardUsage) -> None:
        """Where the steps' time went, and what they did; `bandwidth` in bytes per second."""
        self._print_parts(steps)
        facts = _table("What they did", "", "is")
        for row in (*_work(steps), _fragmentation(steps, block_size), *_hardware(steps, bandwidth, usage)):
            facts.add_row(*row)
        self.console.print(facts)

    def _print_parts(self, steps: np.ndarray) -> None:
        seconds = float(steps["seconds"].sum())
        table = _table(f"{len(steps)} steps in {seconds:.3f} s on the host", "ms a step", "share")
        for part in PARTS:
            table.add_row(part, _number(1000 * float(steps[part].mean())), f"{steps[part].sum() / seconds:.1%}")
        logging = float(steps["logging"].sum())
        table.add_row("(this log)", _number(1000 * logging / len(steps)), f"+{logging / seconds:.2%}", style="dim")
        self.console.print(table)

    def print_kernels(self, profile: Profile, top: int) -> None:
        """What took longest; under the profiler, so only shares are to be believed."""
        idle = f"in {profile.idle_share:.0%} of the time none was at work"
        table = _table(f"Kernels, by their own time: {idle}", "calls", "µs a call", "share")
        for kernel in profile.kernels[:top]:
            each = _number(1e6 * kernel.seconds / kernel.calls)
            table.add_row(kernel.name[:60], f"{kernel.calls:,}", each, f"{kernel.seconds / profile.wall_s:.1%}")
        self.console.print(table)

    def print_memory(self, memory: MemoryParts) -> None:
        """By part."""
        table = _table("Memory", "MB", "share", "is")
        meanings = {
            "weights": "as they are held",
            "kv": "the pool of blocks, used or not",
            "buffers": "rotary tables, graphs",
            "activations": "at the worst moment of a step",
            "runtime": "Python, torch, the profiler's records",
        }
        for name, meaning in meanings.items():
            nbytes = getattr(memory, name) or 0
            table.add_row(name, f"{nbytes / 1e6:,.1f}", f"{nbytes / memory.total:.1%}", meaning)
        self.console.print(table)


def _work(steps: np.ndarray) -> list[tuple[str, str, str]]:
    """What was computed, and how."""
    tokens, padded = int(steps["tokens"].sum()), int(steps["padded"].sum())
    replays, used = int((steps["graph_rows"] > 0).sum()), int(steps["used_blocks"].max())
    blocks = int(steps["used_blocks"][0] + steps["free_blocks"][0])
    return [
        ("tokens", f"{tokens:,}", f"and {padded / (tokens + padded):.1%} more rows of padding"),
        ("replayed", f"{replays} steps", f"{int(steps['recompiles'].sum())} recompiles"),
        ("preemptions", f"{int(steps['preempted'].sum())}", f"at most {used:,} of {blocks:,} blocks in use"),
    ]


def _fragmentation(steps: np.ndarray, block_size: int) -> tuple[str, str, str]:
    slots = int(steps["used_blocks"].sum()) * block_size
    share = int(steps["unused_slots"].sum()) / slots if slots else 0.0
    return "fragmentation", f"{share:.1%}", "of the slots in used blocks, over all steps, held no token"


def _hardware(steps: np.ndarray, bandwidth: float, usage: CardUsage) -> list[tuple[str, str, str]]:
    """How much of it was used: by what a step cannot do without, and by a card's own counters."""
    flops = float(steps["flops"].sum() / steps["seconds"].sum())
    rows = [("arithmetic", f"{flops / 1e9:.1f} GFLOP/s", "2 per weight and token, and attention's")]
    decodes = steps[(steps["tokens"] == steps["rows"]) & (steps["seconds"] > 0)]
    if len(decodes):
        rate = float(np.median((decodes["bytes_read"] + decodes["bytes_written"]) / decodes["seconds"]))
        meaning = f"of the {bandwidth / 1e9:.1f} GB/s of a copy: weights and cache of the median decode step"
        rows.append(("bandwidth", f"{rate / bandwidth:.0%}", meaning))
    said = int(steps["comm_counted"].sum())
    if said:
        needed = int(steps["comm_bytes"].sum())
        rows.append(("between ranks", f"{said / 1e6:.1f} MB", f"of which {needed / said:.0%} activations, by formula"))
    if usage.busy is None or usage.memory_busy is None:
        return [*rows, ("card busy", "n/a", usage.problem)]
    memory = f"its memory {usage.memory_busy:.0f} %: shares of the time, by the driver"
    rows.append(("card busy", f"{usage.busy:.0f} %", memory))
    return [*rows, ("SM occupancy", "n/a", "no counter of nvidia-smi's: Nsight Compute measures it, kernel by kernel")]


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="left" if name == "is" else "right")
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _mark(spread: dict[str, Any], column: str) -> str:
    return "*" if 0 < spread["count"] < FEWEST.get(column, 0) else ""
