"""The pytest plugin that grades an engine: `pytest tests/phase3 --engine my.py:Engine`.

Tests in `tests/phaseN` are functions of two fixtures: `engine_cls`, the class that is graded, and `lab`. Without
`--engine` they run on the reference, `minfer.phaseN.Engine`. The first line of every run says which.
"""

import os
from collections.abc import Generator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from minfer.course.grading import GRADED, Grading, phase_of
from minfer.course.guards import phases_blocked
from minfer.course.loading import Refused
from minfer.course.verdict import Mismatch

if TYPE_CHECKING:
    from minfer.course.lab import Lab

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is first imported, so not later than here
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores already; likewise read when torch is

DEFAULT_SEED = 17
GRADING = pytest.StashKey[Grading]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--engine` and `--seed`."""
    group = parser.getgroup("minfer", "grading an engine")
    group.addoption(
        "--engine",
        metavar="WHAT",
        help="what to grade: FILE.py[:Class] or module:Class; default: $MINFER_ENGINE, or the reference",
    )
    group.addoption(
        "--seed", type=int, default=DEFAULT_SEED, help=f"draws sizes, weights and prompts (default {DEFAULT_SEED})"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find out what is graded; a file or module that is not there ends the run here."""
    spec = config.getoption("--engine") or os.environ.get("MINFER_ENGINE")
    given = config.pluginmanager.get_plugin(GRADED)
    try:
        grading = Grading(spec, given.engine_cls if given else None, config.getoption("--seed"))
        config.stash[GRADING] = grading
    except Refused as refusal:
        raise pytest.UsageError(str(refusal)) from refusal
    if not grading.is_reference and getattr(config.option, "tbstyle", None) == "auto":
        config.option.tbstyle = "short"  # the student's frames, not the grader's


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Say in the first line what is graded."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        grading = session.config.stash[GRADING]
        reporter.write_line(f"grading {grading.describe()}, seed {grading.seed}, torch {_torch_version()}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load what is graded once, before the first test, for each phase that it is graded as."""
    grading = session.config.stash[GRADING]
    if session.config.option.collectonly:
        return
    graded = [item.path for item in session.items if "engine_cls" in getattr(item, "fixturenames", ())]
    try:
        for phase in sorted({phase_of(path) for path in graded}):
            grading.engine_cls(phase)
    except Refused as refusal:
        raise pytest.UsageError(str(refusal)) from refusal


@pytest.fixture
def engine_cls(request: pytest.FixtureRequest) -> type:
    """The class that is graded, for the phase whose folder the test is in."""
    grading = request.config.stash[GRADING]
    return grading.engine_cls(phase_of(request.path))


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Lab":
    """The seeded laboratory; the first test that needs it imports torch."""
    import torch

    from minfer.course.lab import Lab

    torch.set_num_threads(1)  # tiny models are slower on several, and a grade must not depend on their number
    return Lab(request.config.stash[GRADING].seed, lambda: tmp_path_factory.mktemp("model"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Grade a student's file without the phases that are not to be seen, even where a method imports them."""
    grading = item.config.stash[GRADING]
    if grading.is_reference or grading.given or "engine_cls" not in getattr(item, "fixturenames", ()):
        return (yield)
    with phases_blocked(phase_of(item.path)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed check is shown as one screen; what a student has not written yet is shown as that."""
    report = yield
    if call.excinfo is not None and "engine_cls" in getattr(item, "fixturenames", ()):
        error = call.excinfo.value
        again = f"  again     {_again(item)}"
        if isinstance(error, Mismatch):
            report.longrepr = f"{error}\n{again}"
        elif isinstance(error, NotImplementedError):
            report.longrepr = f"todo: {error or 'not implemented'}\n{again}"
    return report


def _again(item: pytest.Item) -> str:
    """The command that runs this test again."""
    grading = item.config.stash[GRADING]
    file = item.path.relative_to(item.config.rootpath) if item.path.is_relative_to(item.config.rootpath) else item.path
    engine = f" --engine {grading.spec}" if grading.spec else ""
    return f"pytest {Path(file)} -k {item.name}{engine} --seed {grading.seed}"


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "absent"
