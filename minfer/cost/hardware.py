"""Hardware: the rates of a machine, as a JSON file: from data sheets and published measurements, or calibrated."""

import json
import math
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minfer.core.errors import MinferError
from minfer.core.hub import cache_folder

SCHEMA = "minfer.hardware/3"
FILES = Path(__file__).parents[1] / "assets" / "hardware"
THIS_MACHINE = "this machine"
CURVES = ("layers", "head", "beside")
"""The terms of `EngineRates` that are curves; the others are lines."""


@dataclass(frozen=True)
class Curve:
    """Seconds as measured at some numbers of rows or tokens; between these, straight in the logarithms of both.

    Beyond the last point the time is proportional to the rows. All are 0 where the products had no call to be timed.
    Raises `ValueError` for what is no such curve.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        rows = [at for at, _ in self.points]
        if not rows or rows[0] <= 0 or rows != sorted(set(rows)) or min(seconds for _, seconds in self.points) < 0:
            raise ValueError(f"a curve is seconds by rows, of growing numbers of these, not {self.points}")

    def seconds(self, rows: int) -> float:
        """Of so many rows or tokens."""
        known = [at for at, _ in self.points]
        place = bisect_left(known, rows)
        if place == 0:
            return self.points[0][1]
        if place == len(known):
            last, value = self.points[-1]
            return value * rows / last
        (low, before), (high, after) = self.points[place - 1 : place + 1]
        share = math.log(rows / low) / math.log(high / low)
        if before == 0 or after == 0:
            return before + share * (after - before)
        return before * (after / before) ** share


@dataclass(frozen=True)
class Line:
    """Seconds of a call that grow with its size: `call` + size · `per`."""

    call: float
    per: float

    def __post_init__(self) -> None:
        if min(self.call, self.per) < 0:
            raise ValueError(f"a line is seconds of a call, and by its size, not {self.call} and {self.per}")

    def seconds(self, size: float, calls: int = 1) -> float:
        """Of `calls` calls of that size altogether."""
        return calls * self.call + size * self.per


@dataclass(frozen=True)
class EngineRates:
    """What the parts of one kind of engine's steps took on a machine: seconds, by sizes of the whole model and step.

    Where ranks share the work, the sizes are still those of the whole: how well it is shared is in the rates.

    layers, head   products, for each weight, by rows
    beside         a layer's operators beside products and attention, by tokens
    prefill        a layer's attention of a prompt, by its FLOPs
    decode         a layer's attention of single tokens, by the bytes of keys and values that it reads
    gather         a layer's gathering of pages, by the bytes that are read and written
    host           of a step outside of the forward, by requests
    compiled       `beside` in a step whose attention is compiled with what surrounds it, and reads pages in place;
                   None: no step's is
    communication  of a step between ranks, waiting included, by the bytes of messages
    """

    layers: Curve
    head: Curve
    beside: Curve
    prefill: Line
    decode: Line
    gather: Line
    host: Line
    compiled: Line | None = None
    communication: Line | None = None

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "EngineRates":
        """What a file has."""
        curves: Any = {name: Curve(tuple((rows, at) for rows, at in facts[name])) for name in CURVES}
        lines: Any = {name: value and Line(*value) for name, value in facts.items() if name not in curves}
        return cls(**curves, **lines)


@dataclass(frozen=True)
class Hardware:
    """Rates in bytes and FLOPs per second; times in seconds. What was not measured on a machine is absent there.

    bandwidth      that large reads reach; `peak_bandwidth`, what the data sheet promises
    flops          by dtype, that large products reach
    operation      the host's time to call one operator; `kernel`, the least time that one takes on the device
    asynchronous   whether the host runs ahead of the device: then a step takes the longer of both, not their sum
    moved          bytes per second that elementwise operators move; 0: as bandwidth
    reach          the share of the bandwidth that products of quantised weights come to, by format; 1 where absent
    link           latency and seconds per byte between ranks
    engines        by what `Setup.kernels` calls them, engines whose steps were timed there
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
    moved: float = 0.0
    reach: dict[str, float] = field(default_factory=dict)
    link: Line | None = None
    engines: dict[str, EngineRates] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rates = {"bandwidth": self.bandwidth, "peak_bandwidth": self.peak_bandwidth}
        rates |= {f"flops of {dtype}": rate for dtype, rate in self.flops.items()}
        rates |= {f"reach of {kind}": share for kind, share in self.reach.items()}
        wrong = [f"{name} is {rate}" for name, rate in rates.items() if not rate > 0]
        if wrong or not self.flops or min(self.operation, self.kernel, self.moved) < 0:
            said = ", ".join(wrong) or "flops are absent, or a time is below 0"
            raise ValueError(f"rates are above 0, and of one dtype at least: {said}")

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"schema": SCHEMA, **_plain(vars(self))}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "Hardware":
        """What a file has. Raises `MinferError` for a key that is missing or unknown, or for what is no value of it."""
        if facts.get("schema") != SCHEMA:
            raise MinferError(f"it is not of schema {SCHEMA}: measured by an older minfer, run minfer calibrate again")
        values = {key: value for key, value in facts.items() if key != "schema"}
        try:
            values["engines"] = {kind: EngineRates.from_dict(one) for kind, one in values.get("engines", {}).items()}
            values["link"] = values.get("link") and Line(*values["link"])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MinferError(str(error).replace("Hardware.__init__() ", "it ")) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Curve):
        return [list(point) for point in value.points]
    if isinstance(value, Line):
        return [value.call, value.per]
    if isinstance(value, EngineRates):
        return _plain(vars(value))
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


def calibrated() -> Hardware | None:
    """This machine, if it was calibrated, and not by a minfer whose files are no longer read."""
    try:
        return find_hardware(None)
    except MinferError:
        return None


def read(path: Path) -> Hardware:
    """Read a file. Raises `MinferError` that names it."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return Hardware.from_dict(facts if isinstance(facts, dict) else {})
    except (OSError, ValueError, RecursionError) as error:
        raise MinferError(f"{path} describes no hardware: {error}") from error


def write(path: Path, hardware: Hardware) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(hardware.as_dict(), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
