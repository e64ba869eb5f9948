"""Right engines of another make, for phase 11: another log, other bookkeeping of requests."""

import json
from collections import deque

from minfer.core.measures.latency import percentile
from minfer.phase11 import Engine
from minfer.phase11.laps import PARTS
from minfer.phase11.metrics import Metrics
from minfer.phase11.step_log import KINDS, StepLog
from tests.mutants.correct import Variant


class Lines(StepLog):
    """Keeps lines, not records; 1200 of them."""

    def __init__(self, most_work, path=None):
        super().__init__(most_work, path)
        self.kept = deque(maxlen=1200)

    def add(self, facts, work):
        number, self.count = self.count, self.count + 1
        line = {"step": number, **facts._asdict(), "device_forward": None, "logging": None}
        line["parts"] = {part: line.pop(part) for part in PARTS}
        graph = [line.pop("graph_rows"), line.pop("graph_blocks")]
        line["graph"] = graph if graph[0] else None
        line["work"] = [{"id": one.request, "tokens": one.tokens, "kind": KINDS[one.kind]} for one in work]
        self.kept.append(line)
        return number

    def took(self, number, seconds):
        self.kept[-1]["logging"] = seconds

    def line(self, number):
        return self.kept[number - self.count]

    def settle(self, number, device_forward):
        self.line(number)["device_forward"] = None if device_forward != device_forward else device_forward
        path, self.path = self.path, None
        super().settle(number, device_forward)  # nothing in memory of its own
        self.path = path
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(self.line(number)) + "\n")

    def lines(self):
        return iter(list(self.kept))


class AsLists(Metrics):
    """Keeps the gaps of each request beside the request, and pools them when asked."""

    def __init__(self):
        super().__init__()
        self.each = []

    def add(self, sequence):
        super().add(sequence)
        tokens = sequence.timestamps.tokens
        if sequence.error is None:
            self.each.append([tokens[i] - tokens[i - 1] for i in range(1, len(tokens))])

    def figures(self, limits=None):
        pooled = sorted(1000 * gap for gaps in self.each for gap in gaps)
        made = super().figures(limits)
        if pooled:
            percentiles = {f"p{percent}": percentile(pooled, percent) for percent in (50, 95, 99)}
            made["itl_ms"] = {"mean": sum(pooled) / len(pooled), **percentiles, "max": pooled[-1], "count": len(pooled)}
        return made


class KeepsLines(Engine):
    def allocate(self):
        super().allocate()
        observer = self.observer
        observer.log = Lines(self.options.max_batch, self.options.step_log)
        observer.metrics = AsLists()


VARIANTS = [Variant(11, KeepsLines)]
