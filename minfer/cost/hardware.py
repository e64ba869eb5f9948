"""Hardware: the rates of a machine, as a JSON file: from data sheets and published measurements, or calibrated."""

import json
import math
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError
from minfer.core.hub import cache_folder

SCHEMA = "minfer.hardware/2"
FILES = Path(__file__).parents[1] / "assets" / "hardware"
THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class Curve:
    """Measured seconds for each weight of a product, by rows; between the points, straight in logarithms.

    Beyond the last point a row costs what the last one did.
    """

    points: tuple[tuple[int, float], ...]

    def seconds(self, rows: int) -> float:
        """Seconds per weight of a product of so many rows."""
        known = [at for at, _ in self.points]
        place = bisect_left(known, rows)
        if place == 0:
            return self.points[0][1]
        if place == len(known):
            last, value = self.points[-1]
            return value * rows / last
        (low, before), (high, after) = self.points[place - 1 : place + 1]
        share = math.log(rows / low) / math.log(high / low)
        return before * (after / before) ** share


@dataclass(frozen=True)
class Line:
    """Seconds of a call that grow with its size: `call` + size · `per`."""

    call: float
    per: float

    def seconds(self, size: float, calls: int = 1) -> float:
        """Of `calls` calls of that size altogether."""
        return calls * self.call + size * self.per


@dataclass(frozen=True)
class Hardware:
    """Rates in bytes and FLOPs per second; times in seconds. What was not measured on a machine is absent there.

    bandwidth      that large reads reach; `peak_bandwidth`, what the data sheet promises
    flops          by dtype, that large products reach
    operation      the host's time to call one operator; `kernel`, the least time that one takes on the device
    asynchronous   whether the host runs ahead of the device: then a step takes the longer of both, not their sum
    reach          the share of the bandwidth that products of quantised weights come to, by format; 1 where absent
    products       by format of weights and part of the model: measured seconds per weight by rows
    gather, decode, prefill      by dtype: a layer's gathering by bytes, its attention by bytes read, or by FLOPs
    layer          by tokens, a layer's operators beside products and attention: eager, eager in 16 bits, fused
    step, request  the host's time for a step outside of the forward, and for each request in it
    link           latency and seconds per byte between ranks
    sources        where each figure is from
    """

    name: str
    title: str
    bandwidth: float
    peak_bandwidth: float
    flops: dict[str, float]
    operation: float
    kernel: float = 0.0
    asynchronous: bool = False
    moved: float = 0.0  # bytes per second that elementwise operators move; 0: as bandwidth
    reach: dict[str, float] = field(default_factory=dict)
    products: dict[str, dict[str, Curve]] = field(default_factory=dict)
    gather: dict[str, Line] = field(default_factory=dict)
    decode: dict[str, Line] = field(default_factory=dict)
    prefill: dict[str, Line] = field(default_factory=dict)
    layer: dict[str, Line] = field(default_factory=dict)
    step: float = 0.0
    request: float = 0.0
    link: Line | None = None
    sources: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        made: dict[str, Any] = {"schema": SCHEMA}
        for name, value in vars(self).items():
            made[name] = _plain(value)
        return made

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "Hardware":
        """What a file has. Raises `MinferError` for a key that no hardware has, or one that is missing."""
        if facts.get("schema") != SCHEMA:
            raise MinferError(f"it is not of schema {SCHEMA}")
        values = {key: value for key, value in facts.items() if key != "schema"}
        if "products" in values:
            values["products"] = {
                form: {part: Curve(tuple((rows, at) for rows, at in points)) for part, points in parts.items()}
                for form, parts in values["products"].items()
            }
        for name in ("gather", "decode", "prefill", "layer"):
            values[name] = {dtype: Line(*line) for dtype, line in values.get(name, {}).items()}
        if values.get("link") is not None:
            values["link"] = Line(*values["link"])
        try:
            return cls(**values)
        except TypeError as error:
            raise MinferError(str(error).replace("Hardware.__init__() ", "it ")) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Curve):
        return [list(point) for point in value.points]
    if isinstance(value, Line):
        return [value.call, value.per]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def known() -> list[str]:
    """Names of the hardware that minfer has a file of."""
    return sorted(path.stem for path in FILES.glob("*.json"))


def calibrated_path() -> Path:
    """Where `minfer calibrate` leaves what it measured of this machine."""
    return cache_folder() / "hardware.json"


def find_hardware(name: str | None) -> Hardware:
    """A known name, a file, or (None) this machine as it was calibrated. Raises `MinferError`."""
    if name is None:
        path = calibrated_path()
        if not path.is_file():
            raise MinferError(
                f"this machine is not calibrated ({path} does not exist): run minfer calibrate, or give --hardware "
                f"{' or '.join(known())}"
            )
        return read(path)
    if name in known():
        return read(FILES / f"{name}.json")
    if not Path(name).is_file():
        raise MinferError(f"hardware {name!r} is neither known nor a file: known are {', '.join(known())}")
    return read(Path(name))


def read(path: Path) -> Hardware:
    """Read a file. Raises `MinferError` that names it."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return Hardware.from_dict(facts if isinstance(facts, dict) else {})
    except (OSError, ValueError) as error:
        raise MinferError(f"{path} describes no hardware: {error}") from error


def write(path: Path, hardware: Hardware) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(hardware.as_dict(), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
