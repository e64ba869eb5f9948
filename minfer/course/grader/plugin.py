"""The pytest plugin that grades an engine: `pytest tests/phase3 --engine my.py:Engine`.

Tests in `tests/phaseN` are functions of two fixtures: `engine_cls`, the class that is graded, and `lab`. Without
`--engine` they run on the reference, `minfer.phaseN.Engine`. The first line of every run says which; what each test
is worth and what it came to is the business of `marking`.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from minfer.course.grader.grading import GRADED, Grading, phases_named
from minfer.course.grader.guards import answers_hidden, phases_blocked, preload
from minfer.course.grader.marking import NAME, Marking, is_graded, versions
from minfer.course.grader.refusals import Refused
from minfer.course.marks.outputs import Outputs, write_csv, write_gradescope, write_report
from minfer.course.marks.report import Report

if TYPE_CHECKING:
    from minfer.course.lab.lab import Lab

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is first imported, so not later than here
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores already; likewise read when torch is

DEFAULT_SEED = 17
GRADING = pytest.StashKey[Grading]()
WRITERS = {"report": write_report, "gradescope": write_gradescope, "csv": write_csv}


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is graded, and what is written about it."""
    group = parser.getgroup("minfer", "grading an engine")
    add = group.addoption
    add(
        "--engine",
        metavar="WHAT",
        help="what to grade: FILE.py[:Class], NOTEBOOK.ipynb[:Class], module:Class, or a FOLDER with phaseN.py; "
        "default: $MINFER_ENGINE, or the reference",
    )
    add("--seed", type=int, default=DEFAULT_SEED, help=f"draws sizes, weights and prompts (default {DEFAULT_SEED})")
    add("--hidden", type=Path, metavar="DIR", help="more tests, each marked @pytest.mark.points(N)")
    add("--report", type=Path, metavar="FILE", help="write minfer.json: every test, its points and its message")
    add("--gradescope", type=Path, metavar="FILE", help="write Gradescope's results.json")
    add("--csv", type=Path, metavar="FILE", help="write a line for each test")
    add("--journal", type=Path, metavar="FILE", help="append what happens as it happens, one JSON object a line")


def pytest_configure(config: pytest.Config) -> None:
    """Find out what is graded; a file or module that is not there ends the run here."""
    option = config.option
    spec = option.engine or os.environ.get("MINFER_ENGINE")
    hidden = option.hidden.resolve() if option.hidden else None
    files = [(getattr(option, name).resolve(), write) for name, write in WRITERS.items() if getattr(option, name)]
    if (files or option.journal) and getattr(option, "numprocesses", None):
        raise pytest.UsageError("results are written by one process: leave --numprocesses out")
    outputs = Outputs(files, option.journal)
    phases = phases_named(config.args)
    try:
        grading = Grading(spec, config.pluginmanager.get_plugin(GRADED), option.seed, phases, hidden)
    except Refused as refusal:
        _refuse(outputs, Report({"spec": spec or "", "described": spec or "", "sha": ""}, option.seed, {}), refusal)
    config.stash[GRADING] = grading
    config.pluginmanager.register(Marking(grading, outputs, config.rootpath), NAME)
    if hidden is not None:
        _add_hidden(config, hidden)
    if not grading.is_reference and getattr(option, "tbstyle", None) == "auto":
        option.tbstyle = "short"  # the student's frames, not the grader's


def _refuse(outputs: Outputs, report: Report, refusal: Refused) -> None:
    """End the run: nothing can be graded; what was asked for is written all the same."""
    report.note = f"refused: {refusal}"
    report.versions = versions()
    outputs.refused(report)
    raise pytest.UsageError(str(refusal)) from refusal


def _add_hidden(config: pytest.Config, hidden: Path) -> None:
    if not any(hidden.glob("**/test_*.py")):
        raise pytest.UsageError(f"--hidden {hidden}: there is no test_*.py in it")
    config.args.append(str(hidden))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Say in the first line what is graded."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        grading = session.config.stash[GRADING]
        reporter.write_line(f"grading {grading.describe()}, seed {grading.seed}, torch {versions()['torch']}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load what is graded once, before the first test, for each phase that it is graded as."""
    grading = session.config.stash[GRADING]
    if session.config.option.collectonly:
        return
    try:
        for phase in sorted({grading.phase_of(item.path) for item in session.items if is_graded(item)}):
            grading.read(phase)  # what is refused here is refused at once
            if not grading.is_reference:
                preload(phase)
            grading.engine_cls(phase)
    except Refused as refusal:
        marking: Any = session.config.pluginmanager.get_plugin(NAME)
        _refuse(marking.outputs, marking.report, refusal)


@pytest.fixture
def engine_cls(request: pytest.FixtureRequest) -> type:
    """The class that is graded, for the phase whose folder the test is in."""
    grading = request.config.stash[GRADING]
    return grading.engine_cls(grading.phase_of(request.path))


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Lab":
    """The seeded laboratory of this test; the first test that needs one imports torch."""
    import torch

    from minfer.course.lab.lab import Lab

    torch.set_num_threads(1)  # tiny models are slower on several, and a grade must not depend on their number
    seed = request.config.stash[GRADING].seed
    return Lab(seed, lambda: tmp_path_factory.mktemp("model"), request.node.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Grade a student's file without the answers, even where a method asks for them; no test needs a later phase."""
    grading = item.config.stash[GRADING]
    if grading.given or not is_graded(item):
        return (yield)
    phase = grading.phase_of(item.path)
    with phases_blocked(phase + 1) if grading.is_reference else answers_hidden(phase):
        return (yield)
