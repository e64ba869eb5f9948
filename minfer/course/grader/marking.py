"""Marking: the part of the plugin that turns outcomes into entries of a report, and writes what is asked for."""

import platform
from collections.abc import Generator
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import minfer
from minfer.core.errors import MinferError
from minfer.course.grader.grading import Grading
from minfer.course.grader.guards import time_stands_still
from minfer.course.grader.refusals import Refused
from minfer.course.marks import screens, table, worth
from minfer.course.marks.judging import Blocked, Judgement, judge
from minfer.course.marks.outputs import Outputs
from minfer.course.marks.report import Entry, Report, Status
from minfer.course.marks.verdict import Mismatch

if TYPE_CHECKING:
    from minfer.course.grader.suspects import Suspects

NAME = "minfer-marking"
LETTERS = {Status.TODO: "t", Status.BLOCKED: "b"}
TEST_SECONDS = 60
"""What one test of an engine that is not the reference may take, where nothing else is said."""


class Marking:
    """Marks the tests that ask for `engine_cls`; `report` is what has been found so far."""

    def __init__(self, grading: Grading, outputs: Outputs, root: Path) -> None:
        self.grading, self.outputs, self.root = grading, outputs, root
        self.entries: dict[str, Entry] = {}
        self.report = Report(grading.identity, grading.seed, versions())

    @cached_property
    def suspects(self) -> "Suspects":
        """Those who may be asked; brings in numpy, and the mutants bring in torch."""
        from minfer.course.grader.suspects import Suspects

        return Suspects()

    # ---- before the tests ----------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Learn what each test is worth, before any is deselected, and put those first that others need."""
        places = [i for i, item in enumerate(items) if is_graded(item)]
        try:
            graded = [(items[i], self.grading.phase_of(items[i].path)) for i in places]
            entries = worth.entries(graded, self.root / "phases", self.grading.hidden)
        except (MinferError, Refused) as error:
            self.report.note = f"refused: {error}"
            raise pytest.UsageError(str(error)) from error
        self.entries = {entry.test: entry for entry in entries}
        by_id = {item.nodeid: item for item, _ in graded}
        phases = list(dict.fromkeys(entry.phase for entry in entries))
        ordered = [e for n in phases for e in worth.in_order([entry for entry in entries if entry.phase == n])]
        for i, entry in zip(places, ordered, strict=True):
            items[i] = by_id[entry.test]
        if not self.grading.is_reference and not self.grading.given:
            for item, _ in graded:
                if item.get_closest_marker("timeout") is None and item.config.getoption("timeout", None) is None:
                    item.add_marker(pytest.mark.timeout(TEST_SECONDS))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The tests that were selected are those that count."""
        selected = [item.nodeid for item in session.items]
        self.entries = {name: self.entries[name] for name in selected if name in self.entries}
        self.report.entries = list(self.entries.values())
        self.outputs.planned(self.report)

    # ---- a test --------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """The test begins."""
        if nodeid in self.entries:
            self.outputs.started(nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Do not run what needs something that did not pass."""
        entry = self.entries.get(item.nodeid)
        if entry is not None and (obstacle := self.report.obstacle(entry)):
            raise Blocked(obstacle)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, pytest.TestReport]:
        """Judge the outcome; what did not pass is shown as one screen."""
        report = yield
        entry = self.entries.get(item.nodeid)
        if entry is None or (call.when != "call" and call.excinfo is None):
            return report
        if call.excinfo is None:
            report.graded = {"status": Status.PASSED.value}
        else:
            lacks_gpu = call.when == "setup" and item.get_closest_marker("gpu") is not None
            tests = [self.root / "tests", *([self.grading.hidden] if self.grading.hidden else [])]
            judgement = judge(call.excinfo.value, entry, lacks_gpu, tests)
            self._show(item, entry, call.excinfo.value, judgement, report)
        about = {"code": entry.code, "points": entry.points, "status": report.graded["status"]}
        item.user_properties += list(about.items())  # what --junitxml writes
        return report

    def _show(self, item: pytest.Item, entry: Entry, error: BaseException, judgement: Judgement, report: Any) -> None:
        """Give the pytest report its screen, and the data of which the entry is made."""
        guilty = self._suspects(item, error, entry) if isinstance(error, Mismatch) else ()
        screen = [judgement.screen(entry), *(f"  {'looks like':<9} {line}" for line in looks_like(guilty))]
        report.graded = {"status": judgement.status.value, "message": "\n".join(screen), "looks_like": guilty}
        if judgement.status is Status.BLOCKED:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {screen[0]}")
        elif judgement.status in (Status.SKIPPED, Status.ABSENT):
            return
        elif not (self.grading.is_reference and judgement.status is Status.FAILED and not isinstance(error, Mismatch)):
            report.sections = screens.shortened(report.sections)
            report.longrepr = "\n".join([*screen, *self.next_steps(entry)])

    def next_steps(self, entry: Entry) -> list[str]:
        """The last lines of a screen: where to read more, and the command that runs this test again."""
        engine = f" --engine {self.grading.spec}" if self.grading.spec else ""
        file, _, name = entry.test.partition("::")
        again = f"pytest {file} -k {name.rpartition('::')[2]}{engine} --seed {self.grading.seed}"
        more = [f"  {'more':<9} minfer explain {entry.code}"] if entry.visible else []
        return [*more, f"  {'again':<9} {again}"]

    def _suspects(self, item: Any, mismatch: Mismatch, entry: Entry) -> tuple[str, ...]:
        """Who else gives this output; asked of nobody's class in memory, since planted mistakes are graded so."""
        if self.grading.is_reference or not self.grading.asks_suspects:
            return ()
        arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
        lab = arguments.get("lab")
        if lab is None:
            return ()
        again = lambda: type(lab)(lab.seed, lab.new_folder, lab.test)  # noqa: E731 (draws what the test drew)
        self.outputs.asked(entry.test)
        with time_stands_still():
            return self.suspects.of(item.obj, arguments, again, mismatch, entry.phase)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Fill in the entry."""
        entry, graded = self.entries.get(report.nodeid), getattr(report, "graded", None)
        if entry is None or graded is None:
            return
        if report.when == "call" or Status(graded["status"]) is not Status.PASSED:
            entry.status = Status(graded["status"])
            entry.message = graded.get("message", "")
            entry.looks_like = tuple(graded.get("looks_like", ()))
            entry.seconds = round(report.duration, 3)
            self.outputs.ended(entry)

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """To-dos and blocked tests have letters of their own."""
        status = getattr(report, "graded", {}).get("status")
        if report.when == "call" and status in [*LETTERS]:
            found = Status(status)
            return found.words, LETTERS[found], found.words.upper()
        return None

    # ---- after the tests -----------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write what was asked for."""
        self.outputs.finish(self.report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The points by task, for an engine that is not the reference."""
        if not self.grading.is_reference and self.entries:
            terminalreporter.write_line("")
            terminalreporter.write(table.text(self.report, self.root / "phases"))


def is_graded(item: Any) -> bool:
    """Whether a test asks for the engine that is graded."""
    return "engine_cls" in getattr(item, "fixturenames", ())


def looks_like(guilty: tuple[str, ...]) -> list[str]:
    """The suspects in words: one line."""
    if not guilty:
        return []
    return [f"this planted mistake, whose output is the same to the last digit: {' / '.join(guilty)}"]


def versions() -> dict[str, str]:
    """What the result may depend on."""
    found = {"minfer": minfer.__version__, "python": platform.python_version(), "platform": platform.machine()}
    for name in ("torch", "numpy", "pytest"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found
