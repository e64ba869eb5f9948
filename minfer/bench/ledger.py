"""Ledger: what was measured, where, with every raw sample, as one JSON file that tables are made from."""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console

from minfer.bench.runner import Series
from minfer.bench.sample import Sample
from minfer.bench.workloads import Workload
from minfer.core.errors import MinferError, OptionsError

SCHEMA = "minfer.bench/1"


def environment() -> dict[str, Any]:
    """The machine and the versions that figures belong to."""
    return {
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_at_start": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def entry(
    workload: Workload, samples: dict[str, list[Sample]], absent: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """One workload's part of a ledger; `absent`: rows that could not be run, and why."""
    rows: list[dict[str, Any]] = [
        {"name": n, "samples": [run.as_dict() for run in runs]} for n, runs in samples.items()
    ]
    return {
        "workload": workload.name,
        "about": workload.about,
        "figure": workload.figure,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "rows": [*rows, *({"name": name, "samples": [], "absent": reason} for name, reason in absent.items())],
    }


def row_of(part: dict[str, Any], name: str) -> dict[str, Any]:
    """The entry of a row in a workload's part, made where there is none."""
    found = next((row for row in part["rows"] if row["name"] == name), None)
    if found is None:
        found = {"name": name, "samples": []}
        part["rows"].append(found)
    return found


def series(part: dict[str, Any], save: Callable[[], None]) -> Series:
    """A part's runs as a series to go on with; what becomes of it is noted in the part, and saved."""
    samples = {row["name"]: runs(row) for row in part["rows"] if "absent" not in row}
    state = Series(samples, {row["name"]: row["absent"] for row in part["rows"] if "absent" in row})

    def keep() -> None:
        for name, samples in state.samples.items():
            row_of(part, name)["samples"] = [sample.as_dict() for sample in samples]
        for name, reason in state.failed.items():
            row_of(part, name).update(samples=[], absent=reason)
        save()

    state.keep = keep
    return state


def unfinished(path: Path | None, command: str) -> dict[str, Any] | None:
    """What an interrupted run of `command` left in the file; None where there is no file.

    Raises `OptionsError` for a file of anything else, or of a run that is finished.
    """
    if path is None or not path.exists():
        return None
    found = load(path)
    if found.get("command") != command:
        raise OptionsError(f"--out {path} is of {found.get('command')!r}: name another file, or remove this one")
    if found.get("finished", True):
        raise OptionsError(f"--out {path} is finished: name another file, or show it with minfer bench show")
    return found


def resumed(path: Path | None, command: str, console: Console) -> dict[str, Any] | None:
    """As `unfinished`, and tells the user when there is something to go on with."""
    found = unfinished(path, command)
    if found is not None:
        console.print(f"minfer: going on with {path}", highlight=False)
    return found


def save(path: Path | None, ledger: dict[str, Any]) -> None:
    """Write a ledger whole or not at all; nowhere if no file was asked for."""
    if path is None:
        return
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(json.dumps(_rounded(ledger), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def load(path: Path) -> dict[str, Any]:
    """Read a ledger. Raises `MinferError` if it is not one."""
    try:
        ledger = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MinferError(
            f"{path} is not a ledger ({error}): make one with minfer bench phases --out or minfer bench fast --out"
        ) from error
    if not isinstance(ledger, dict) or ledger.get("schema") != SCHEMA:
        raise MinferError(f"{path} is not a ledger of schema {SCHEMA}")
    try:
        for part in ledger["parts"]:
            for row in part["rows"]:
                str(row["name"]), runs(row)
    except (KeyError, TypeError) as error:
        raise MinferError(f"{path} is a damaged ledger, or of another version ({error!r}): measure again") from error
    return ledger


def runs(row: dict[str, Any]) -> list[Sample]:
    """A row's samples."""
    return [Sample(**sample) for sample in row["samples"]]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if abs(value) >= 1e-3 else float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
