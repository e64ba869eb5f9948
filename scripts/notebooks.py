"""Runs notebooks, each in a fresh kernel and two at a time: `python -m scripts.notebooks [--write] [NAME …]`.

Fails with the first line of the error of every cell that raised one, and where a cell, a notebook or all of them take
longer than ALLOWANCE times what they may: 20, 60 and 480 s on two idle cores. With --write the outputs go into the
files, without what differs from one run to the next, and notebooks run one after another, so that none disturbs what
another one measures.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from rich.console import Console
from rich.progress import Progress

FOLDER = Path(__file__).parents[1] / "notebooks"
CELL, NOTEBOOK, ALL = 20, 60, 480
"""Seconds that one cell, one notebook, and all of them may take on two idle cores."""

ALLOWANCE = 3.0
"""How many times as long is taken for a machine that does other things too, and is no failure yet."""

TIMEOUT = 300  # seconds after which a cell is given up
AT_ONCE = 2
SLOWEST = 5  # cells that are named at the end
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass
class Run:
    """One notebook, executed."""

    path: Path
    seconds: float = 0.0
    cells: dict[int, float] = field(default_factory=dict)  # seconds by the cell's place
    error: str = ""

    @property
    def slowest(self) -> float:
        """Seconds of the slowest cell."""
        return max(self.cells.values(), default=0.0)

    def too_slow(self, allowance: float) -> list[str]:
        """What took longer than so many times its limit."""
        cells = [f"cell {place + 1}: {took:.0f} s" for place, took in self.cells.items() if took > allowance * CELL]
        whole = [f"{self.seconds:.0f} s in all"] if self.seconds > allowance * NOTEBOOK else []
        return [f"{self.path.name} {said}" for said in [*cells, *whole]]

    def __str__(self) -> str:
        said = f"{self.path.name:16} {self.seconds:5.1f} s, slowest cell {self.slowest:4.1f} s"
        return f"{said}  FAILED {self.error}" if self.error else said


def execute(path: Path, write: bool) -> Run:
    """Run the cells in a fresh kernel, in the notebook's own folder."""
    run, notebook = Run(path), nbformat.read(path, as_version=4)
    started: dict[int, float] = {}

    def begins(cell: Any, cell_index: int) -> None:
        started[cell_index] = time.monotonic()

    def ends(cell: Any, cell_index: int, execute_reply: Any) -> None:
        run.cells[cell_index] = time.monotonic() - started[cell_index]

    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        startup_timeout=TIMEOUT,
        extra_arguments=["--log-level=40"],  # errors only: else each kernel warns that it talks over a local port
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=begins,
        on_cell_executed=ends,
    )
    start = time.monotonic()
    try:
        client.execute()
    except CellExecutionError as error:
        run.error = f"in cell {max(started) + 1}: {error.ename}: {ESCAPES.sub('', error.evalue)}"
    except (CellTimeoutError, RuntimeError) as error:
        run.error = f"in cell {max(started, default=0) + 1}: {str(error).splitlines()[0]}"
    run.seconds = time.monotonic() - start
    if write and not run.error:
        nbformat.write(steady(notebook), path)
    return run


def steady(notebook: Any) -> Any:
    """The notebook without what differs from one run to the next though nothing has changed."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [_steady_output(output) for output in cell.outputs if not _is_progress(output)]
    return notebook


def _steady_output(output: Any) -> Any:
    """Text without colours and without addresses in memory."""
    if "text" in output:
        output.text = ESCAPES.sub("", output.text)
    if "data" in output:
        if "image/png" in output.data:
            output.data.pop("text/plain", None)
        output.metadata = nbformat.from_dict({})
    return output


def _is_progress(output: Any) -> bool:
    """What only showed that something went on: the standard error, and a progress bar's widget."""
    widget = "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    return widget or (output.output_type == "stream" and output.name == "stderr")


def executed(paths: list[Path], write: bool, console: Console) -> Iterator[Run]:
    """All of them, in the order given; each kernel is a process of its own, and so is who talks to it."""
    own = ProcessPoolExecutor(1 if write else AT_ONCE, get_context("spawn"))
    with own as pool, Progress(console=console, transient=True) as progress:
        task = progress.add_task("notebooks", total=len(paths))
        for run in pool.map(partial(execute, write=write), paths):
            progress.advance(task)
            progress.console.print(str(run), highlight=False, markup=False)
            yield run


def over(ran: list[Run], took: float, allowance: float) -> list[str]:
    """Everything that took longer than so many times its limit."""
    whole = [f"all: {took:.0f} s"] if took > allowance * ALL else []
    return [said for run in ran for said in run.too_slow(allowance)] + whole


def report(ran: list[Run], took: float, allowance: float) -> Iterator[str]:
    """The slowest cells, what was too slow, and the whole."""
    cells = sorted(((s, run.path.name, at + 1) for run in ran for at, s in run.cells.items()), reverse=True)
    yield "slowest: " + ", ".join(f"{name} cell {at} {s:.1f} s" for s, name, at in cells[:SLOWEST])
    limits = f"limits: {CELL} s a cell, {NOTEBOOK} s a notebook, {ALL} s all, times {allowance:g} for a busy machine"
    yield from (f"TOO SLOW {said} ({limits})" for said in over(ran, took, allowance))
    failed = sum(bool(run.error) for run in ran)
    beyond = len(over(ran, took, 1.0))
    yield f"{len(ran)} notebooks in {took:.0f} s, {failed} failed; {beyond} times over a limit without allowance"


def main() -> None:
    """Exit status 1 if a notebook fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="such as phase3; default: all")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the files")
    parser.add_argument(
        "--allowance", type=float, default=ALLOWANCE, help="times a limit that fail; default: %(default)s"
    )
    asked = parser.parse_args()
    paths = [FOLDER / f"{name}.ipynb" for name in asked.names] or sorted(FOLDER.glob("*.ipynb"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of two kernels on two cores wait for each other
    console, start = Console(soft_wrap=True), time.monotonic()
    ran = list(executed(paths, asked.write, console))
    took, failed = time.monotonic() - start, [run for run in ran if run.error]
    for line in report(ran, took, asked.allowance):
        console.print(line, highlight=False, markup=False)
    sys.exit(bool(failed or over(ran, took, asked.allowance)))


if __name__ == "__main__":
    main()
