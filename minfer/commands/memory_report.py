"""MemoryReport: a memory budget as a bar, tables, and the formulas with the model's numbers put in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from minfer.phase2 import MemoryBudget
from minfer.phase2.weight_formats import FORMATS

WIDEST = 100  # columns; a longer bar says no more
CARD_ENDS = "the card ends here"


@dataclass(frozen=True)
class Part:
    """A share of the memory; the character tells it apart where colours do not."""

    name: str
    nbytes: int
    mark: str
    style: str
    reason: str = ""


class MemoryReport:
    """Prints a `MemoryBudget` to a console; it reads well at 60 columns and in grey."""

    def __init__(self, budget: MemoryBudget, console: Console) -> None:
        self.budget, self.console = budget, console

    def print(self, model: str, place: str) -> None:
        """Everything that follows from the config; `place` names the memory."""
        self._print_title(model, place)
        self._print_bar()
        self._print_parts()
        self._print_cache()
        self._print_what_fits()
        self._print_formats()

    def print_loading(self, device: str, measured: int) -> None:
        """The measured peak of loading on `device`, in bytes, beside what phase 2 promises."""
        budget = self.budget
        promised = budget.loading_peak + budget.rotary_table
        self._heading(f"Loading, measured on {device}")
        table = _table("left", "right")
        table.add_row("final weights", decimal(budget.weights))
        table.add_row("+ rotary table", decimal(budget.rotary_table))
        table.add_row("+ largest tensor", decimal(budget.loading_peak - budget.weights))
        table.add_row("= at most", decimal(promised), style="bold")
        table.add_row("measured peak", f"{decimal(measured)}, {100 * measured / promised:.0f} %", style="bold")
        self.console.print(table)

    def _print_title(self, model: str, place: str) -> None:
        count = self.budget.parameters
        self._line(f"[bold]{escape(model)}[/] on [bold]{escape(place)}[/], {binary(self.budget.memory)}")
        self._heading(f"{count.total:,} parameters")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        parts = {"embedding": count.embedding, "attention": count.attention, "MLP": count.mlp, "norms": count.norms}
        for name in (*parts, "head"):
            table.add_column(name, justify="right")
        table.add_row(*map(_count, parts.values()), _count(count.head) if count.head else "tied")
        self.console.print(table)

    def _print_bar(self) -> None:
        width = min(self.console.width, WIDEST)
        self.console.print()
        self.console.print(bar(self._parts(), width))
        if not self.budget.fits:
            self.console.print(Text(card_end(width, self.budget.memory / self.budget.needed), "bold red"))

    def _parts(self) -> list[Part]:
        budget = self.budget
        table = f", rotary table {binary(budget.rotary_table)}" if budget.rotary_table else ""
        step = f"prefill of {budget.tokens:,} tokens"
        if budget.decode.peak > budget.prefill.peak:
            step = f"decode of {_sequences(budget.batch)}"
        cache = f"{budget.kv_per_token:,} B × {budget.tokens:,} × {budget.batch}"
        weights = budget.weights_on_card + budget.rotary_table
        away = ""
        if budget.offload_layers:
            host = binary(budget.offload_layers * budget.layer)
            away = f", {budget.offload_layers} of {budget.config.num_layers} layers on the host: {host}"
        parts = [
            Part("weights", weights, "█", "blue", budget.weight_format.name + table + away),
            Part("KV cache", budget.kv_cache, "▓", "green", cache),
            Part("activations", budget.activations, "▒", "yellow", step),
            Part("runtime", budget.reserve, "░", "magenta", "torch, CUDA, rounding"),
        ]
        return [*parts, Part("free", budget.free, "·", "dim")] if budget.fits else parts

    def _print_parts(self) -> None:
        table = _table("left", "left", "right", "right", "left")
        for part in self._parts():
            share = f"{100 * part.nbytes / self.budget.memory:.1f} %"
            table.add_row(
                Text(2 * part.mark, part.style), part.name, binary(part.nbytes), share, Text(part.reason, "dim")
            )
        if not self.budget.fits:
            missing = f"{-100 * self.budget.free / self.budget.memory:.1f} %"
            table.add_row("", "missing", binary(-self.budget.free), missing, style="bold red")
        self.console.print()
        self.console.print(table)

    def _print_cache(self) -> None:
        budget, config = self.budget, self.budget.config
        factors = (2, config.num_layers, config.num_kv_heads, config.head_dim, budget.kv_itemsize)
        self._heading("KV cache")
        self._line("bytes per token = 2 · layers · KV heads · head_dim · bytes")
        self._line(f"                = {' · '.join(map(str, factors))} = [bold]{budget.kv_per_token:,}[/]")
        self._line(self._sharing())
        whole = binary(budget.kv_cache // budget.batch)
        self._line(f"Phase 3 holds one sequence at a time: {whole} for {budget.tokens:,} tokens.")
        if budget.kv_cache_in_windows < budget.kv_cache:
            seen = binary(budget.kv_cache_in_windows // budget.batch)
            self._line(f"Sliding windows: {seen} would hold what can still be seen, but it keeps all.")
        if budget.kv_dtype not in (None, budget.compute_dtype):
            self._line(f"{budget.kv_dtype} is a what-if: engines keep the cache in {budget.compute_dtype} here.")

    def _sharing(self) -> str:
        config = self.budget.config
        if config.num_kv_heads == config.num_heads:
            return f"No GQA: each of the {config.num_heads} query heads has a KV head of its own."
        times = f"{config.num_heads / config.num_kv_heads:g} times"
        whole = binary(self.budget.kv_cache_without_gqa)
        return f"GQA: {config.num_kv_heads} KV heads for {config.num_heads} query heads; without it {times}: {whole}."

    def _print_what_fits(self) -> None:
        budget = self.budget
        sequences, context = budget.most_sequences(), budget.longest_context()
        self._heading("What fits")
        limit = " (the model's limit)" if context == budget.config.context else ""
        if not budget.fits:
            self._line(f"[bold red]Not this: {binary(-budget.free)} are missing.[/] {self._advice(sequences, context)}")
        if sequences:
            self._line(f"[bold]{_sequences(sequences)}[/] of {budget.tokens:,} tokens")
        if context:
            self._line(f"[bold]{context:,} tokens[/]{limit} for {_sequences(budget.batch)}")

    def _advice(self, sequences: int, context: int) -> str:
        """What to type instead: one change that is enough, or a narrower dtype with fewer sequences."""
        budget = self.budget
        narrower = [replace(budget, dtype=name) for name in FORMATS if FORMATS[name].bits < budget.weight_format.bits]
        choices = [f"--batch {sequences}"] if sequences else []
        choices += [f"--context {context}"] if context else []
        choices += [f"--dtype {other.dtype}" for other in narrower if other.fits][:1]
        if not choices:
            fewer = ((other.dtype, other.most_sequences()) for other in narrower)
            choices = [f"--dtype {dtype} --batch {most}" for dtype, most in fewer if most][:1]
        return f"Try {' or '.join(choices)}." if choices else "It needs a larger card, or several."

    def _print_formats(self) -> None:
        self._heading("Weights by dtype")
        count = self.budget.parameters
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("")
        for header in ("B/weight", "raw", "kept", "fits"):
            table.add_column(header, justify="right")
        for name, weight_format in FORMATS.items():
            other = replace(self.budget, dtype=name)
            style = "bold" if weight_format == self.budget.weight_format else ""
            each = f"{count.matrix_bytes(weight_format) / count.quantisable:.3f}"
            sizes = (decimal(weight_format.raw_bytes(count.total)), decimal(other.weights))
            table.add_row(name, each, *sizes, "yes" if other.fits else "no", style=style)
        self.console.print(table)
        self._line(
            "[dim]GB = 10⁹ bytes. raw: all parameters at that size. kept: linear layers with their scales in bfloat16; "
            "embeddings, norms and a tied head stay in 16 bits.[/]"
        )

    def _heading(self, text: str) -> None:
        self._line(f"\n[bold]{text}[/]")

    def _line(self, markup: str) -> None:
        self.console.print(markup, highlight=False, width=min(self.console.width, WIDEST))


def bar(parts: Sequence[Part], width: int) -> Text:
    """The parts as one line of `width` characters in proportion; what is there at all has one at least."""
    text = Text(no_wrap=True)
    for part, cells in zip(parts, _cells([part.nbytes for part in parts], width), strict=True):
        text.append(cells * part.mark, part.style)
    return text


def _cells(sizes: list[int], width: int) -> list[int]:
    """Whole numbers in proportion to `sizes`, `width` in all, 1 at least for what is not 0."""
    exact = [size * width / sum(sizes) for size in sizes]
    cells = [max(int(share), size > 0) for share, size in zip(exact, sizes, strict=True)]
    while sum(cells) != width:
        step = 1 if sum(cells) < width else -1
        cells[max(range(len(sizes)), key=lambda i: step * (exact[i] - cells[i]))] += step
    return cells


def card_end(width: int, share: float) -> str:
    """A line below a bar of `width` whose first `share` the card has: where it ends."""
    end = min(int(width * share), width - 1)
    fits_right = end + len(CARD_ENDS) + 2 <= width
    return f"{' ' * end}▲ {CARD_ENDS}" if fits_right else f"{CARD_ENDS} ▲".rjust(end + 1)


def binary(nbytes: int) -> str:
    """Bytes in powers of 1024, as memory is made: "14.96 GiB"."""
    return _scaled(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def decimal(nbytes: int) -> str:
    """Bytes in powers of 1000, as parameters are counted: "16.06 GB"."""
    return _scaled(nbytes, 1000, ("B", "kB", "MB", "GB", "TB"))


def _scaled(nbytes: int, base: int, units: tuple[str, ...]) -> str:
    value, unit = float(nbytes), 0
    while value >= base - 0.005 and unit + 1 < len(units):
        value, unit = value / base, unit + 1
    return f"{value:.2f} {units[unit]}" if unit else f"{nbytes} {units[0]}"


def _count(numbers: int) -> str:
    return f"{numbers / 1e6:,.1f} M" if numbers >= 1e6 else f"{numbers / 1e3:.1f} k"


def _sequences(count: int) -> str:
    return f"{count:,} sequence{'' if count == 1 else 's'}"


def _table(*alignments: Literal["left", "right"]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for index, justify in enumerate(alignments):
        last = index == len(alignments) - 1
        table.add_column(justify=justify, no_wrap=not last)
    return table
